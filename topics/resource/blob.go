// SPDX-License-Identifier: Apache-2.0

package resource

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"strings"
)

// DigestPrefix begins a digest. The SHA-256 of the content follows, in lower-case hexadecimal.
const DigestPrefix = "sha256:"

// MaxBlobRange is the largest Length of a BlobRequest, in bytes. It bounds the memory that a download costs the hub.
const MaxBlobRange = 16 << 10

// DigestOf returns the digest of a content.
func DigestOf(content []byte) string { return FormatDigest(sha256.Sum256(content)) }

// FormatDigest returns the digest for a SHA-256.
func FormatDigest(sum [sha256.Size]byte) string { return DigestPrefix + hex.EncodeToString(sum[:]) }

// ParseDigest reads a digest: sha256: and 64 characters of 0–9 and a–f. Its errors are Invalid.
func ParseDigest(digest string) (sum [sha256.Size]byte, err error) {
	text, ok := strings.CutPrefix(digest, DigestPrefix)
	if !ok || len(text) != 2*len(sum) || strings.ToLower(text) != text {
		return sum, badDigest(digest)
	}
	if _, err := hex.Decode(sum[:], []byte(text)); err != nil {
		return sum, badDigest(digest)
	}
	return sum, nil
}

func badDigest(digest string) error {
	return Errorf(Invalid, "digest", "%.80q is no digest: sha256: and 64 characters of 0-9a-f", digest)
}

// BlobRequest is the payload of the topic blobs/get.
//
// On the node's broker an agent requests a whole blob. It sets Digest and Size only. The response topic of the request is the
// node's blobs/answers/{request}, where {request} is any name. The BlobAnswers there have the request's correlation data. The
// last one has Path or Error. Answers before it have neither: they report the progress of the download, at most once a second.
// A repeated request is answered again, and the blob is downloaded once.
//
// On the hub a node's core requests a range of a blob. It sets Digest, Offset and Length. The answer is one message on the
// response topic, the node's blobs/answers/{request}, with the request's correlation data. Its payload is the bytes of the
// range, which are fewer than Length if the blob ends within the range. If the hub refuses the request, the payload is empty
// and the user properties code (an ErrorKind) and error (a sentence) say why.
type BlobRequest struct {
	// Digest identifies the blob.
	Digest string `json:"digest"`
	// Size is the size of the blob in bytes, as the spec states it beside the digest.
	Size int64 `json:"size,omitempty"`
	// Offset is the position of the first byte of the range, from 0.
	Offset int64 `json:"offset,omitempty"`
	// Length is the length of the range in bytes, from 1 to MaxBlobRange.
	Length int `json:"length,omitempty"`
	// Damaged says that an earlier download had another digest. The hub then verifies its copy.
	Damaged bool `json:"damaged,omitempty"`
}

// BlobAnswer is the core's answer to an agent.
type BlobAnswer struct {
	// Digest identifies the blob.
	Digest string `json:"digest"`
	// Path is the absolute path of a file with the blob's content, whose digest was verified. The file must not be changed. It
	// may be removed an hour after the answer and when the core restarts: copy it, or request it again.
	Path string `json:"path,omitempty"`
	// Received is how many of Size bytes the core has.
	Received int64 `json:"received"`
	Size     int64 `json:"size"`
	// Error says why there will be no file, and Reason is its ErrorKind. Invalid: the request is wrong. Forbidden: the node's
	// spec does not refer to the blob. NotFound: the hub does not have it. Quota: it does not fit into limits.blobs.
	// Unavailable: try again later; the hub may be out of reach, or the disk full. Internal: each download had another digest.
	Error  string `json:"error,omitempty"`
	Reason string `json:"reason,omitempty"`
}

// Done reports whether an answer is the last one to its request.
func (a BlobAnswer) Done() bool { return a.Path != "" || a.Error != "" }

// ParseBlobRequest reads a request and checks its digest. Its errors are Invalid.
func ParseBlobRequest(payload []byte) (r BlobRequest, err error) {
	if err := json.Unmarshal(payload, &r); err != nil {
		return r, Errorf(Invalid, "", `the request is not JSON such as {"digest":"sha256:…","size":1024}: %v`, err)
	}
	_, err = ParseDigest(r.Digest)
	return r, err
}
