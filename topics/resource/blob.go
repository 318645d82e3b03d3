package resource

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"strings"
)

// DigestPrefix stands before the SHA-256, in lower-case hex, of a blob's content in its digest.
const DigestPrefix = "sha256:"

// MaxBlobRange is the largest Length of a BlobRequest. It bounds the memory that a download costs the hub.
const MaxBlobRange = 16 << 10

// DigestOf is the digest of a content.
func DigestOf(content []byte) string { return FormatDigest(sha256.Sum256(content)) }

// FormatDigest is the digest with that SHA-256.
func FormatDigest(sum [sha256.Size]byte) string { return DigestPrefix + hex.EncodeToString(sum[:]) }

// ParseDigest reads a digest: sha256: and 64 characters of 0-9a-f. Its errors are Invalid.
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
// On the node's broker an agent requests a whole blob, with Digest and Size and nothing else, and gets BlobAnswers on the
// MQTT 5 response topic of the request, with its correlation data: one with Path or Error at the end, and before that at
// most one a second without either, which say how far the download is. The response topic is blobs/answers/{request} of
// the node, {request} being any name. A repeated request is answered again; the blob is downloaded once.
//
// On the hub a node's core requests a range of a blob, with Digest, Offset and Length, and gets the bytes as the payload of
// one message on the response topic, which is blobs/answers/{request} of the node, with the request's correlation data. If the
// blob ends within the range they are fewer. If the hub refuses, the payload is empty and the user properties code (an
// ErrorKind) and error (a sentence) say why.
type BlobRequest struct {
	// Digest is the blob's.
	Digest string `json:"digest"`
	// Size is the blob's in bytes, as the spec has it beside the digest.
	Size int64 `json:"size,omitempty"`
	// Offset is where the range begins.
	Offset int64 `json:"offset,omitempty"`
	// Length is how many bytes it has, 1 to MaxBlobRange.
	Length int `json:"length,omitempty"`
	// Damaged says that what the node has downloaded before had another digest: the hub checks its copy.
	Damaged bool `json:"damaged,omitempty"`
}

// BlobAnswer is what the core answers an agent.
type BlobAnswer struct {
	// Digest is the blob's.
	Digest string `json:"digest"`
	// Path is the file with the blob's content, whose digest was verified: absolute, and not to be changed. It may be removed
	// an hour after the answer, or when the core restarts: copy it, or request it again.
	Path string `json:"path,omitempty"`
	// Received and Size are how many bytes of how many the core has.
	Received int64 `json:"received"`
	Size     int64 `json:"size"`
	// Error says why there will be no file, and Reason is its ErrorKind. Invalid: the request is wrong. Forbidden: the hub
	// gives the node only what its spec refers to. NotFound: the hub does not have it. Quota: it does not fit into
	// limits.blobs. Unavailable: try again later; there may be no hub, or no room on the disk. Internal: the content had
	// another digest each time.
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
