// SPDX-License-Identifier: Apache-2.0

//go:build !recordsnext

package cluster

// nextRecords is by how much this program's version of records is above that of the sources.
const nextRecords = 0
