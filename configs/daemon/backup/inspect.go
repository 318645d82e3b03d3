package backup

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
)

// inspect reads a backup from end to end, and says what the checksums don't: whether its files belong together.
// That is damage, and no error: a backup of it can be meant.
func (p Program) inspect(l *line, path string) (m Manifest, damage, err error) {
	if p.Relate == nil {
		m, err = p.verify(l, path)
		return m, nil, err
	}
	dir, err := room(path)
	if err != nil {
		return m, nil, err
	}
	defer os.RemoveAll(dir) // what is left is named as what a killed backup leaves
	m, err = read(path, func(f File) (io.WriteCloser, error) {
		if !slices.Contains(p.Related, f.Name) {
			return nil, nil
		}
		return os.OpenFile(filepath.Join(dir, f.Name), os.O_CREATE|os.O_WRONLY|os.O_EXCL, 0o600)
	}, l.checking)
	if err != nil || m.Program != p.Name {
		return m, nil, err
	}
	if err := p.Relate(dir); err != nil {
		damage = fmt.Errorf("the data in %s is damaged: %w", l.named(path), err)
	}
	return m, damage, nil
}

// whole inspects a backup of which nothing may be damaged.
func (p Program) whole(l *line, path string) (Manifest, error) {
	m, damage, err := p.inspect(l, path)
	return m, errors.Join(err, damage)
}

// named is the backup as its user calls it, also before it has its name.
func (l *line) named(path string) string {
	if l.file != "" {
		return l.file
	}
	return path
}

// room is a new directory to unpack into: beside the backup, whose disk has room for such data and whose
// reader may have all of it; or, where nothing can be written, where the system keeps what is temporary.
func room(path string) (string, error) {
	dir, err := os.MkdirTemp(filepath.Dir(path), filepath.Base(path)+".*"+partSuffix)
	if err != nil {
		dir, err = os.MkdirTemp("", filepath.Base(path)+".*"+partSuffix)
	}
	return dir, err
}
