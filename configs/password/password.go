// Package password makes hashes in mosquitto_passwd's form, reads them, and compares passwords
// with them. It keeps no password.
package password

import (
	"crypto/pbkdf2"
	"crypto/rand"
	"crypto/sha512"
	"crypto/subtle"
	"encoding/base64"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync/atomic"
)

const (
	maxIterations = 10_000_000
	decoy         = "$7$101$AAAAAAAAAAAAAAAA$AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=="
)

// iterations of a hash that is made: about 10 ms of a processor for each sign-in, and for each guess.
const iterations = 20_000

// Make is the hash of a password, as Parse reads it.
func Make(password []byte) string {
	salt := make([]byte, 12)
	_, _ = rand.Read(salt) // it never fails
	sum, err := pbkdf2.Key(sha512.New, string(password), salt, iterations, sha512.Size)
	if err != nil {
		panic(err) // only for lengths that these aren't
	}
	return fmt.Sprintf("$7$%d$%s$%s", iterations, base64.StdEncoding.EncodeToString(salt), base64.StdEncoding.EncodeToString(sum))
}

// ErrHash is the only error of Parse.
var ErrHash = errors.New("not a password hash of mosquitto_passwd's ($7$iterations$salt$hash or $6$salt$hash)")

// Work counts the rounds of hashing that were done, for those who bound them.
var Work atomic.Int64

// Hash is a stored password. The zero value is no password's.
type Hash struct {
	iterations int // 0: one round of salted SHA-512, as $6$ has it
	salt, sum  []byte
}

// Parse reads a hash in either of mosquitto's forms.
func Parse(s string) (Hash, error) {
	var h Hash
	parts := strings.Split(s, "$")
	switch {
	case len(parts) == 5 && parts[0] == "" && parts[1] == "7":
		n, err := strconv.Atoi(parts[2])
		if err != nil || n < 1 || n > maxIterations {
			return h, ErrHash
		}
		h.iterations = n
		parts = parts[3:]
	case len(parts) == 4 && parts[0] == "" && parts[1] == "6":
		parts = parts[2:]
	default:
		return h, ErrHash
	}
	var err1, err2 error
	h.salt, err1 = base64.StdEncoding.DecodeString(parts[0])
	h.sum, err2 = base64.StdEncoding.DecodeString(parts[1])
	if err1 != nil || err2 != nil || len(h.salt) == 0 || len(h.sum) != sha512.Size {
		return h, ErrHash
	}
	return h, nil
}

// Slowest is a hash that nobody's password has, which takes as long to compare with as the
// slowest of others. Whoever is compared with it instead of a user that doesn't exist can't
// tell by the time which users do.
func Slowest(others []Hash) Hash {
	h, _ := Parse(decoy) // a constant
	for _, o := range others {
		h.iterations = max(h.iterations, o.iterations)
	}
	return h
}

// Rounds is how much work it is to compare a password with the hash.
func (h Hash) Rounds() int { return max(1, h.iterations) }

// Less is a hash that nobody's password has, which takes as long to compare with as this one takes longer than another.
func (h Hash) Less(other Hash) Hash {
	if h.iterations = max(0, h.iterations-other.iterations); h.iterations == 0 {
		return Hash{}
	}
	return h
}

// Matches compares in constant time. The zero value is nobody's, and no work.
func (h Hash) Matches(password []byte) bool {
	if h.sum == nil {
		return false
	}
	Work.Add(int64(h.Rounds()))
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
