package broker

import (
	"crypto/pbkdf2"
	"crypto/sha512"
	"crypto/subtle"
	"encoding/base64"
	"errors"
	"strconv"
	"strings"
)

const (
	maxIterations = 10_000_000
	// decoy is checked for users that don't exist, so that how long an answer takes
	// doesn't tell who does.
	decoy = "$7$101$AAAAAAAAAAAAAAAA$AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=="
)

var errHash = errors.New("not a password hash of mosquitto_passwd's ($7$iterations$salt$hash or $6$salt$hash)")

// hash is a stored password.
type hash struct {
	iterations int // 0: one round of salted SHA-512, as $6$ has it
	salt, sum  []byte
}

// parseHash reads a hash in either of mosquitto's forms.
func parseHash(s string) (hash, error) {
	var h hash
	parts := strings.Split(s, "$")
	switch {
	case len(parts) == 5 && parts[0] == "" && parts[1] == "7":
		n, err := strconv.Atoi(parts[2])
		if err != nil || n < 1 || n > maxIterations {
			return h, errHash
		}
		h.iterations = n
		parts = parts[3:]
	case len(parts) == 4 && parts[0] == "" && parts[1] == "6":
		parts = parts[2:]
	default:
		return h, errHash
	}
	var err1, err2 error
	h.salt, err1 = base64.StdEncoding.DecodeString(parts[0])
	h.sum, err2 = base64.StdEncoding.DecodeString(parts[1])
	if err1 != nil || err2 != nil || len(h.salt) == 0 || len(h.sum) != sha512.Size {
		return h, errHash
	}
	return h, nil
}

// matches compares in constant time.
func (h hash) matches(password []byte) bool {
	var sum []byte
	if h.iterations == 0 {
		all := sha512.Sum512(append(append([]byte(nil), password...), h.salt...))
		sum = all[:]
	} else {
		var err error
		if sum, err = pbkdf2.Key(sha512.New, string(password), h.salt, h.iterations, sha512.Size); err != nil {
			return false
		}
	}
	return subtle.ConstantTimeCompare(sum, h.sum) == 1
}
