// SPDX-License-Identifier: Apache-2.0

package enroll

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"

	"github.com/edgebus/edgebus/cloud/store"
	"github.com/edgebus/edgebus/topics/resource"
)

// kindAuthority is the kind of the record of which files the authority's directory has. The store keeps it, since it tells a directory
// that lost files, or is gone, from that of a new hub.
const kindAuthority = "Authority"

var recordKey = store.Key{Kind: kindAuthority, Name: DirName}

// authorityRecord is what the store has of the authority's directory. Where there is one, so are the files that every hub has.
type authorityRecord struct {
	// Numbers are those of the authorities that the hub has made.
	Numbers []int `json:"numbers"`
	// LastRevocation is the time of the last revocation, in ms since 1970: a list that ends before it is an older copy.
	LastRevocation int64 `json:"lastRevocation,omitempty"`
	// Issued is the time before which all certificates were made, if other hubs go on with the store.
	Issued int64 `json:"issued,omitempty"`
}

// readRecord reads the record; nil: there is none.
func readRecord(ctx context.Context, r store.Reader) (*authorityRecord, uint64, error) {
	if r == nil {
		return nil, 0, nil
	}
	o, err := r.Get(ctx, recordKey)
	if errors.Is(err, resource.NotFound) {
		return nil, 0, nil
	}
	rec := new(authorityRecord)
	if err == nil {
		err = json.Unmarshal(o.Data, rec)
	}
	if err != nil {
		return nil, 0, fmt.Errorf("the record of the authority's files can't be read: %w", err)
	}
	return rec, o.Rev, nil
}

// check returns an error if a file is missing. given says that the configuration has an authority, and that the hub's own is not used.
func (rec *authorityRecord) check(dir string, given bool) error {
	if rec == nil {
		return nil
	}
	if err := checkFile(dir, revokedName, "without it nodes that were revoked would be let in again"); err != nil {
		return err
	}
	if err := checkFile(dir, issuedName, "without it a node could be revoked in vain after the clock was set back"); err != nil || given {
		return err
	}
	for _, n := range rec.Numbers {
		for _, name := range []string{strconv.Itoa(n) + ".pem", strconv.Itoa(n) + ".key"} {
			if err := checkFile(dir, name, "nodes know the hub by it, and with another one each would have to join again"); err != nil {
				return err
			}
		}
	}
	if len(rec.Numbers) == 0 {
		return nil
	}
	return checkFile(dir, StateName, "it says until when an authority that was replaced is trusted")
}

// checkRevoked returns an error if the list of revocations is an older copy.
func (rec *authorityRecord) checkRevoked(newest int64) error {
	if rec == nil || rec.LastRevocation <= newest {
		return nil
	}
	return fmt.Errorf("%s/%s is an older copy: its last revocation is of %s, and there was one at %s: nodes that were revoked would be let in again; put the newer file back, or restore the whole backup",
		DirName, revokedName, resource.FormatMillis(newest), resource.FormatMillis(rec.LastRevocation))
}

func checkFile(dir, name, why string) error {
	_, err := os.Stat(filepath.Join(dir, name))
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%s/%s is missing: %s; take it from a backup (tar xzf BACKUP %s/%s), or restore the whole backup", DirName, name, why, DirName, name)
	}
	return err
}

// writeRecord writes the record of the files that there are.
func (a *Authority) writeRecord(ctx context.Context) error {
	if a.o.Writer == nil {
		return nil
	}
	old, rev, err := readRecord(ctx, a.o.Reader)
	if err != nil {
		return err
	}
	rec := authorityRecord{Numbers: append([]int{}, a.numbers...), LastRevocation: a.revoked.newest()}
	if a.o.Shared {
		rec.Issued = a.revoked.issuedBefore()
	}
	if a.o.Cert != "" && old != nil {
		rec.Numbers = old.Numbers // they are good again if the configuration's is removed
	}
	data, err := json.Marshal(rec)
	if err != nil {
		return err
	}
	if old != nil {
		if was, err := json.Marshal(old); err == nil && string(was) == string(data) {
			return nil
		}
	}
	return store.Put(ctx, a.o.Writer, store.Object{Key: recordKey, Data: data}, rev)
}
