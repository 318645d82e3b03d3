package backup

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/edgebus/edgebus/configs/daemon/datadir"
)

// aside begins the name of the directory that has what was there before a restore.
const aside = "before-restore-"

// restore puts a backup into a directory. It is prepared beside what is there, and
// takes its place when it is whole; a directory that was left in between is refused
// by the programs.
func (p Program) restore(l *line) error {
	look := p.verify // what it unpacks it looks into
	if l.dryRun {
		defer l.interruptible()()
		look = p.whole
	}
	m, err := look(l, l.file)
	if err != nil {
		return err
	}
	if m.Program != p.Name {
		return fmt.Errorf("%s has data of %s: use %s restore", l.file, m.Program, m.Program)
	}
	if err := datadir.Refuse(l.dir, p.Name); err != nil { // not even by force: it is no old version of this data
		return err
	}
	old, err := present(l.dir)
	if err != nil {
		return err
	}
	moveTo := unused(filepath.Join(l.dir, aside+time.Now().UTC().Format("20060102T150405Z")))
	fmt.Fprintf(l.out, "%s is whole: %s\n", l.file, describe(m))
	switch {
	case len(old) > 0 && !l.force:
		return fmt.Errorf("%s is not empty: restore into an empty directory, or say --force, and what is there is moved to %s", l.dir, moveTo)
	case len(old) > 0:
		fmt.Fprintf(l.out, "what is in %s goes to %s\n", l.dir, moveTo)
	}
	if l.dryRun {
		fmt.Fprintf(l.out, "%d files would be restored into %s; nothing was changed\n", len(m.Files), l.dir)
		return nil
	}
	dir, err := datadir.Claim(l.dir, p.Name+" restore")
	if err != nil {
		return err
	}
	defer dir.Close()
	if err := giveTo(l.dir, filepath.Join(l.dir, datadir.LockName)); err != nil {
		return err
	}
	if err := p.prepare(l); err != nil {
		return errors.Join(err, os.RemoveAll(filepath.Join(l.dir, datadir.Unfinished)))
	}
	if err := exchange(l.dir, old, moveTo); err != nil {
		return err
	}
	fmt.Fprintf(l.out, "%s has the data of %s again. Start %s: what the other side has seen since, it sends again.\n",
		l.dir, m.Time.Format(time.RFC3339), p.Name)
	return nil
}

// unused is a name that nothing has.
func unused(path string) string {
	for n, name := 2, path; ; n++ {
		if _, err := os.Lstat(name); err != nil {
			return name
		}
		name = fmt.Sprintf("%s-%d", path, n)
	}
}

// present lists the data in a directory.
func present(dir string) (names []string, err error) {
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	for _, e := range entries {
		if kept(e.Name()) {
			names = append(names, e.Name())
		}
	}
	return names, nil
}

// prepare extracts, checks and forks, in a directory of its own.
func (p Program) prepare(l *line) error {
	fresh := filepath.Join(l.dir, datadir.Unfinished)
	if err := os.RemoveAll(fresh); err != nil {
		return err
	}
	if err := datadir.Make(fresh); err != nil {
		return err
	}
	err := unpack(l.file, fresh, func(m Manifest) *progress { return newProgress(l.ctx, l.err, "restoring", m.size()) })
	if err != nil {
		return err
	}
	if err := p.report(fresh, l.out); err != nil {
		return fmt.Errorf("the backup was made of damaged data: %w", err)
	}
	n := stamp(time.Now(), l.dir)
	if err := p.Fork(fresh, n); err != nil {
		return err
	}
	if err := writeStamp(fresh, n); err != nil {
		return err
	}
	return giveTo(l.dir, fresh)
}

// exchange moves what is there aside, and what was prepared into its place.
func exchange(dir string, old []string, moveTo string) error {
	if len(old) > 0 {
		if err := errors.Join(datadir.Make(moveTo), giveTo(dir, moveTo)); err != nil {
			return err
		}
		for _, name := range old {
			if err := os.Rename(filepath.Join(dir, name), filepath.Join(moveTo, name)); err != nil {
				return err
			}
		}
		if err := datadir.Sync(moveTo); err != nil {
			return err
		}
	}
	fresh := filepath.Join(dir, datadir.Unfinished)
	entries, err := os.ReadDir(fresh)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if err := os.Rename(filepath.Join(fresh, e.Name()), filepath.Join(dir, e.Name())); err != nil {
			return err
		}
	}
	if err := datadir.Sync(dir); err != nil {
		return err
	}
	return errors.Join(os.Remove(fresh), datadir.Sync(dir))
}

// stampFile is where a restored directory says what its stamp was.
const stampFile = "restored"

// stamp is the upper half of versions after a restore: hours since 2025, which rise from
// one restore to the next, and keep versions exact in a JSON number for two centuries. A
// directory that was restored within the hour says so, and gets the next one.
func stamp(now time.Time, dir string) uint32 {
	n := uint32(max(now.Sub(time.Date(2025, 1, 1, 0, 0, 0, 0, time.UTC))/time.Hour, 0))
	text, err := os.ReadFile(filepath.Join(dir, stampFile))
	if err != nil {
		return n
	}
	last, err := strconv.ParseUint(strings.TrimSpace(string(text)), 10, 21)
	if err != nil {
		return n
	}
	return max(n, uint32(last)+1)
}

func writeStamp(dir string, n uint32) error {
	f, err := os.OpenFile(filepath.Join(dir, stampFile), os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintln(f, n)
	return errors.Join(err, synced{f}.Close(), datadir.Sync(dir))
}
