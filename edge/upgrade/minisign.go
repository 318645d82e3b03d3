// SPDX-License-Identifier: Apache-2.0

package upgrade

import (
	"errors"
	"fmt"
	"strings"

	"aead.dev/minisign"
)

// trustedKeys are the public keys of minisign that the node trusts.
type trustedKeys []minisign.PublicKey

func parseKeys(list []string) (all trustedKeys, err error) {
	for i, text := range list {
		fields := strings.Fields(text)
		if len(fields) == 0 {
			return nil, fmt.Errorf("upgrade.keys[%d]: it is empty", i)
		}
		var k minisign.PublicKey
		if err := k.UnmarshalText([]byte(fields[len(fields)-1])); err != nil { // a comment may be before it
			return nil, fmt.Errorf("upgrade.keys[%d]: it is no public key of minisign, such as RWQf6LRCGA9i53mlYecO4IzT51TGPpvWucNSCh1CBM0QTaLn73Y7GFO3: %w", i, err)
		}
		all = append(all, k)
	}
	return all, nil
}

// verify checks a signature that minisign has made, of the text or (minisign -H, its default) of the text's BLAKE2b hash. The
// trusted comment is checked as well.
func (all trustedKeys) verify(text []byte, signature string) error {
	if len(all) == 0 {
		return errors.New("this node trusts no key: list the public key in upgrade.keys of its agent.yaml")
	}
	var s minisign.Signature
	if err := s.UnmarshalText([]byte(signature)); err != nil {
		return fmt.Errorf("the signature is none of minisign: %w", err)
	}
	for _, k := range all {
		if k.ID() != s.KeyID {
			continue
		}
		if !minisign.Verify(k, text, []byte(signature)) {
			return errors.New("the signature is not of this content, or its trusted comment was changed")
		}
		return nil
	}
	return fmt.Errorf("the signature is of the key %016X, which this node does not trust (upgrade.keys)", s.KeyID)
}
