// SPDX-License-Identifier: Apache-2.0

// Package hubdata is a hub's data directory: its log, the key of Secrets (secretskey.go), the commands that check, save, restore and take over what is in it
// (maintenance.go), and the copy of it that is kept on another machine (follow.go). It knows of several hubs only what their data has of that.
package hubdata
