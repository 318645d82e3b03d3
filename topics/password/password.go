// SPDX-License-Identifier: Apache-2.0

// Package password makes hashes of passwords (argon2id), reads these and the ones that mosquitto_passwd writes, and compares
// passwords with them. It keeps no password.
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

	"golang.org/x/crypto/argon2"
)

const maxIterations = 10_000_000

// Bounds of the parameters of an argon2id hash that is read, so that a line of the configuration can't take all memory.
const (
	maxMemory  = 256 << 10 // KiB
	maxPasses  = 64
	maxThreads = 16
	sumSize    = 32
)

// defaultArgon are the parameters of the hashes that Make makes: the first that OWASP's Password Storage Cheat Sheet recommends with so
// little memory. A sign-in takes about 25 ms of a processor and 19 MiB.
var defaultArgon = argonParameters{memory: 19 << 10, passes: 2, threads: 1}

// argonParameters are the parameters of argon2id: memory in KiB.
type argonParameters struct {
	memory, passes uint32
	threads        uint8
}

// rounds is about how many iterations of PBKDF2 with SHA-512 take as long (BenchmarkCost measures it).
func (a argonParameters) rounds() int { return int(a.memory) * int(a.passes) * 3 / 2 }

// NewHash is the hash of a password, as Parse reads it.
func NewHash(password []byte) string {
	salt := make([]byte, 16)
	_, _ = rand.Read(salt) // it never fails
	sum := argon2.IDKey(password, salt, defaultArgon.passes, defaultArgon.memory, defaultArgon.threads, sumSize)
	enc := base64.RawStdEncoding
	return fmt.Sprintf("$argon2id$v=%d$m=%d,t=%d,p=%d$%s$%s", argon2.Version, defaultArgon.memory, defaultArgon.passes, defaultArgon.threads,
		enc.EncodeToString(salt), enc.EncodeToString(sum))
}

// ErrHash is the only error of Parse.
var ErrHash = errors.New("not a password hash that is known ($argon2id$v=19$m=…,t=…,p=…$salt$hash as `edgebus passwd` makes it, or mosquitto_passwd's $7$iterations$salt$hash or $6$salt$hash)")

// RoundsDone counts the rounds of hashing that were done, for those who bound them.
var RoundsDone atomic.Int64

// Hash is a stored password. The zero value is no password's.
type Hash struct {
	iterations int             // of PBKDF2; 0: one round of salted SHA-512, as $6$ has it
	argon      argonParameters // the zero value: it isn't argon2id
	salt, sum  []byte
}

// Parse reads a hash of argon2id, or in either of mosquitto's older forms.
func Parse(s string) (Hash, error) {
	var h Hash
	parts := strings.Split(s, "$")
	switch {
	case len(parts) == 6 && parts[0] == "" && parts[1] == "argon2id":
		return parseArgon(parts[2], parts[3], parts[4], parts[5])
	case len(parts) == 5 && parts[0] == "" && parts[1] == "7":
		n, err := strconv.Atoi(parts[2])
		if err != nil || n < 1 || n > maxIterations {
			return Hash{}, ErrHash
		}
		h.iterations = n
		parts = parts[3:]
	case len(parts) == 4 && parts[0] == "" && parts[1] == "6":
		parts = parts[2:]
	default:
		return Hash{}, ErrHash
	}
	var err1, err2 error
	h.salt, err1 = base64.StdEncoding.DecodeString(parts[0])
	h.sum, err2 = base64.StdEncoding.DecodeString(parts[1])
	if err1 != nil || err2 != nil || len(h.salt) == 0 || len(h.sum) != sha512.Size {
		return Hash{}, ErrHash
	}
	return h, nil
}

func parseArgon(version, params, salt, sum string) (h Hash, err error) {
	if version != fmt.Sprintf("v=%d", argon2.Version) {
		return Hash{}, ErrHash
	}
	a := &h.argon
	n, err := fmt.Sscanf(params, "m=%d,t=%d,p=%d", &a.memory, &a.passes, &a.threads)
	if err != nil || n != 3 || fmt.Sprintf("m=%d,t=%d,p=%d", a.memory, a.passes, a.threads) != params {
		return Hash{}, ErrHash
	}
	if a.memory < 8*uint32(a.threads) || a.memory > maxMemory || a.passes < 1 || a.passes > maxPasses || a.threads < 1 || a.threads > maxThreads {
		return Hash{}, fmt.Errorf("%w: argon2id takes m from 8p to %d KiB, t from 1 to %d, p from 1 to %d", ErrHash, maxMemory, maxPasses, maxThreads)
	}
	var err1, err2 error
	h.salt, err1 = base64.RawStdEncoding.DecodeString(salt)
	h.sum, err2 = base64.RawStdEncoding.DecodeString(sum)
	if err1 != nil || err2 != nil || len(h.salt) < 8 || len(h.sum) < 16 || len(h.sum) > 64 {
		return Hash{}, ErrHash
	}
	return h, nil
}

// impossibleSum has the sums of no password: to find one would be to break the hash.
var impossibleSum = [sha512.Size]byte{}

// SlowestHash is a hash of no password, which takes as long to compare with as the slowest of others. Comparing with it where a
// user does not exist keeps the time of an answer from telling which users do.
func SlowestHash(others []Hash) Hash {
	h := Hash{iterations: 101}
	for _, o := range others {
		if o.Rounds() > h.Rounds() {
			h = Hash{iterations: o.iterations, argon: o.argon}
		}
	}
	h.salt, h.sum = impossibleSum[:16], impossibleSum[:]
	if h.argon != (argonParameters{}) {
		h.sum = impossibleSum[:sumSize]
	}
	return h
}

// Rounds is how much work it is to compare a password with the hash, in iterations of PBKDF2.
func (h Hash) Rounds() int {
	if h.argon != (argonParameters{}) {
		return h.argon.rounds()
	}
	return max(1, h.iterations)
}

// Remainder is a hash of no password, which takes as long to compare with as this one takes longer than another.
func (h Hash) Remainder(other Hash) Hash {
	n := h.Rounds() - other.Rounds()
	if n <= 0 {
		return Hash{}
	}
	return Hash{iterations: n, salt: impossibleSum[:16], sum: impossibleSum[:]}
}

// Matches compares in constant time. The zero value is no password's, and no work.
func (h Hash) Matches(password []byte) bool {
	if h.sum == nil {
		return false
	}
	RoundsDone.Add(int64(h.Rounds()))
	var sum []byte
	switch {
	case h.argon != (argonParameters{}):
		sum = argon2.IDKey(password, h.salt, h.argon.passes, h.argon.memory, h.argon.threads, uint32(len(h.sum)))
	case h.iterations == 0:
		all := sha512.Sum512(append(append([]byte(nil), password...), h.salt...))
		sum = all[:]
	default:
		var err error
		if sum, err = pbkdf2.Key(sha512.New, string(password), h.salt, h.iterations, sha512.Size); err != nil {
			return false
		}
	}
	return subtle.ConstantTimeCompare(sum, h.sum) == 1
}
