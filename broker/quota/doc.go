// SPDX-License-Identifier: Apache-2.0

// Package quota limits how much of a limited resource (connections, bytes of queued messages) each user, node or address may
// hold, so that none of them takes all of it. Its errors name the setting (docs/adr/0037).
//
// It never has what it counts: its callers add and subtract.
package quota
