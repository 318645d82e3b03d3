// SPDX-License-Identifier: Apache-2.0

//go:build recordsnext

package cluster

// nextRecords makes this program one of the next version of records, to try how hubs of two versions run together.
const nextRecords = 1
