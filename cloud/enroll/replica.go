// SPDX-License-Identifier: Apache-2.0

package enroll

import (
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"
)

// OpenReplica reads the authority of a hub that stands by, whose files are those of the hub that serves. It makes and changes nothing, and knows no revocations.
func OpenReplica(o AuthorityOptions) (*Authority, error) {
	if o.Now == nil {
		o.Now = time.Now
	}
	a := &Authority{o: o, trustedUntil: map[int]time.Time{}, configs: map[string]*tls.Config{}}
	if o.Cert != "" {
		return a, a.readGiven()
	}
	text, err := os.ReadFile(filepath.Join(a.dir(), StateName))
	var st authorityState
	if err == nil {
		err = json.Unmarshal(text, &st)
	}
	if err == nil {
		a.signers, err = readSigners(a.dir())
	}
	if err != nil {
		return nil, err
	}
	if len(a.signers) == 0 {
		return nil, fmt.Errorf("%s has no certificate: %w", a.dir(), fs.ErrNotExist)
	}
	for _, s := range a.signers {
		if until, ends := st.TrustedUntil[s.number]; ends {
			a.trustedUntil[s.number] = until
		}
	}
	a.dropExpired()
	return a, nil
}
