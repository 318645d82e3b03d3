// SPDX-License-Identifier: Apache-2.0

// Package newmapper is edgebus new-mapper: it writes a mapper in Go, to be completed, from the templates beside it.
package newmapper
