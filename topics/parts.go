// SPDX-License-Identifier: Apache-2.0

package topics

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"strconv"
)

// PartSize is the largest value that is stored whole. A larger document is
// stored as a Manifest under its own key, and as parts of this size beside it.
const PartSize = 64 << 10

// PartsManifest stands where a document would, when the document is in parts.
type PartsManifest struct {
	SHA256 string `json:"sha256"`
	Size   int    `json:"size"`
}

// SplitDocument gives the value for a document's own key, and its parts, if it needs any.
func SplitDocument(document []byte) (value []byte, parts [][]byte) {
	if len(document) <= PartSize {
		return document, nil
	}
	sum := sha256.Sum256(document)
	value, _ = json.Marshal(PartsManifest{hex.EncodeToString(sum[:]), len(document)}) // a struct of a string and an int
	for len(document) > 0 {
		n := min(PartSize, len(document))
		parts, document = append(parts, document[:n]), document[n:]
	}
	return value, parts
}

// JoinDocument gives the document back: value itself, or what its parts make. It is not
// ok while a part is missing or belongs to another version of the document.
func JoinDocument(value []byte, part func(n int) ([]byte, bool)) (document []byte, ok bool) {
	m, inParts := parsePartsManifest(value)
	if !inParts {
		return value, true
	}
	for n := 0; len(document) < m.Size; n++ {
		p, ok := part(n)
		if !ok || len(p) == 0 || len(document)+len(p) > m.Size {
			return nil, false
		}
		document = append(document, p...)
	}
	sum := sha256.Sum256(document)
	return document, hex.EncodeToString(sum[:]) == m.SHA256
}

// parsePartsManifest reads a value as a Manifest; any other JSON is not one.
func parsePartsManifest(value []byte) (m PartsManifest, ok bool) {
	if len(value) > 200 || !bytes.HasPrefix(value, []byte(`{"sha256":"`)) {
		return m, false
	}
	err := json.Unmarshal(value, &m)
	return m, err == nil && len(m.SHA256) == 2*sha256.Size && m.Size > PartSize
}

// PartKey is the key of a document's nth part.
func PartKey(key string, n int) string { return key + "/parts/" + strconv.Itoa(n) }
