// Package identity knows the users whose identities are not in the configuration: holders of bearer tokens that the hub made,
// and people whom an OpenID Connect provider vouches for.
//
// It never decides what a user may do; it says who somebody is, with which role, for which nodes, and until when. It never
// keeps a token, only its SHA-256.
package identity
