// SPDX-License-Identifier: Apache-2.0

// Package signin gets tokens of an OpenID Connect provider: by the device flow (RFC 8628), and by a refresh token.
//
// It never keeps one: who asks for it does.
package signin
