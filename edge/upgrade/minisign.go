package upgrade

import (
	"bytes"
	"crypto/ed25519"
	"encoding/base64"
	"errors"
	"fmt"
	"strings"

	"golang.org/x/crypto/blake2b"
)

// key is a public key in minisign's format: the second line of the file that minisign -G writes.
type key struct {
	id     [8]byte
	public ed25519.PublicKey
}

func parseKey(text string) (k key, err error) {
	lines := strings.Fields(text)
	if len(lines) == 0 {
		return k, errors.New("it is empty")
	}
	raw, err := base64.StdEncoding.DecodeString(lines[len(lines)-1]) // a comment may be before it
	if err != nil || len(raw) != 2+8+ed25519.PublicKeySize || string(raw[:2]) != "Ed" {
		return k, errors.New("it is no public key of minisign, such as RWQf6LRCGA9i53mlYecO4IzT51TGPpvWucNSCh1CBM0QTaLn73Y7GFO3")
	}
	copy(k.id[:], raw[2:10])
	k.public = ed25519.PublicKey(raw[10:])
	return k, nil
}

// keys are those that the node trusts.
type keys []key

func parseKeys(list []string) (all keys, err error) {
	for i, text := range list {
		k, err := parseKey(text)
		if err != nil {
			return nil, fmt.Errorf("upgrade.keys[%d]: %w", i, err)
		}
		all = append(all, k)
	}
	return all, nil
}

// verify checks a signature that minisign has made, of the text or (minisign -H, its default) of the text's BLAKE2b hash. The
// trusted comment is checked as well.
func (all keys) verify(text []byte, signature string) error {
	if len(all) == 0 {
		return errors.New("this node trusts no key: list the public key in upgrade.keys of its agent.yaml")
	}
	lines := strings.Split(strings.ReplaceAll(strings.TrimRight(signature, "\n"), "\r", ""), "\n")
	const comment = "trusted comment: "
	if len(lines) != 4 || !strings.HasPrefix(lines[2], comment) {
		return errors.New("the signature is none of minisign: it has four lines")
	}
	raw, err := base64.StdEncoding.DecodeString(lines[1])
	if err != nil || len(raw) != 2+8+ed25519.SignatureSize {
		return errors.New("the signature is none of minisign: its second line is damaged")
	}
	global, err := base64.StdEncoding.DecodeString(lines[3])
	if err != nil || len(global) != ed25519.SignatureSize {
		return errors.New("the signature is none of minisign: its fourth line is damaged")
	}
	signed := text
	switch string(raw[:2]) {
	case "Ed":
	case "ED":
		hash := blake2b.Sum512(text)
		signed = hash[:]
	default:
		return fmt.Errorf("the signature has the algorithm %q, which this version does not know", raw[:2])
	}
	for _, k := range all {
		if !bytes.Equal(k.id[:], raw[2:10]) {
			continue
		}
		if !ed25519.Verify(k.public, signed, raw[10:]) {
			return errors.New("the signature is not of this content")
		}
		if !ed25519.Verify(k.public, append(bytes.Clone(raw[10:]), lines[2][len(comment):]...), global) {
			return errors.New("the trusted comment of the signature was changed")
		}
		return nil
	}
	return fmt.Errorf("the signature is of the key %X, which this node does not trust (upgrade.keys)", reversed(raw[2:10]))
}

// reversed is a key's id as minisign prints it: a little-endian number.
func reversed(id []byte) []byte {
	out := make([]byte, len(id))
	for i, b := range id {
		out[len(id)-1-i] = b
	}
	return out
}
