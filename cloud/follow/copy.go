// SPDX-License-Identifier: Apache-2.0

package follow

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/edgebus/edgebus/broker/daemon/datadir"
	"github.com/edgebus/edgebus/broker/journal"
)

// A copy that is begun anew is made in a directory beside the log, and takes its place when it has all that lives. So what has the log's name is
// always whole.
const (
	newSuffix = ".new"
	oldSuffix = ".old"
)

// logCopy is the copy that is written to.
type logCopy struct {
	path    string // of the log
	open    func(dir string) (*journal.Journal, error)
	journal *journal.Journal
	copy    journal.LogCopy
	at      journal.Origin
	begun   bool // at says what it is a copy of
	anew    bool // it is the one beside the log
}

// openCopy opens the copy in a directory, or begins one.
func openCopy(path string, open func(dir string) (*journal.Journal, error)) (*logCopy, error) {
	c := &logCopy{path: path, open: open}
	if err := EndReplacement(path); err != nil {
		return nil, err
	}
	for _, dir := range []string{path + newSuffix, path} { // one that was begun goes on
		if _, err := os.Stat(dir); err == nil {
			return c, c.use(dir)
		}
	}
	return c, c.use(path + newSuffix)
}

// EndReplacement ends a replacement of a log that was interrupted.
func EndReplacement(path string) error {
	_, gone := os.Stat(path)
	_, err := os.Stat(path + oldSuffix)
	switch {
	case err != nil:
		return nil
	case gone != nil: // the new one has all, and has not its name yet
		if err := os.Rename(path+newSuffix, path); err != nil {
			return err
		}
	}
	return errors.Join(os.RemoveAll(path+oldSuffix), datadir.SyncDir(filepath.Dir(path)))
}

func (c *logCopy) use(dir string) (err error) {
	if c.journal, err = c.open(dir); err != nil {
		return err
	}
	c.copy, c.anew = journal.CopyIn(c.journal), dir != c.path
	if c.at, c.begun, err = c.copy.Origin(); err != nil {
		return errors.Join(err, c.journal.Close())
	}
	if !c.begun && !c.anew {
		return errors.Join(fmt.Errorf("%s is the log of a hub, and no copy: name another directory with --data-dir", dir), c.journal.Close())
	}
	return nil
}

// begin begins another copy beside the log. The one before stays until that is whole.
func (c *logCopy) begin() error {
	err := c.journal.Close()
	if err == nil {
		err = os.RemoveAll(c.path + newSuffix)
	}
	if err == nil {
		err = c.use(c.path + newSuffix)
	}
	return err
}

// apply applies frames. A copy that is whole with them takes the log's place.
func (c *logCopy) apply(to journal.Origin, bodies [][]byte) error {
	if err := c.copy.Apply(to, bodies...); err != nil {
		return err
	}
	c.at, c.begun = to, true
	if !c.anew || !to.IsWhole() {
		return nil
	}
	if err := c.replace(); err != nil {
		return Refused{fmt.Errorf("the copy that is whole now can't take the place of the one before: %w", err)}
	}
	return nil
}

// replace gives the new copy the log's name. A crash on the way leaves what EndReplacement finds.
func (c *logCopy) replace() error {
	parent := filepath.Dir(c.path)
	err := c.journal.Close()
	if err != nil {
		return err
	}
	if _, err := os.Stat(c.path); err == nil {
		if err := errors.Join(os.RemoveAll(c.path+oldSuffix), os.Rename(c.path, c.path+oldSuffix), datadir.SyncDir(parent)); err != nil {
			return err
		}
	}
	if err := os.Rename(c.path+newSuffix, c.path); err != nil {
		return err
	}
	if err := errors.Join(datadir.SyncDir(parent), os.RemoveAll(c.path+oldSuffix)); err != nil {
		return err
	}
	return c.use(c.path)
}

func (c *logCopy) close() error { return c.journal.Close() }
