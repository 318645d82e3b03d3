// SPDX-License-Identifier: Apache-2.0

// Package clitest runs commands of edgebus in tests, against the API of a hub with a store of its own.
package clitest
