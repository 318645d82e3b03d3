package upkeep

import (
	"archive/tar"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/edgebus/edgebus/configs/datadir"
)

// A backup is a tar file, compressed with gzip. Its first entry says what the others are.
const (
	manifestName = "edgebus-backup.json"
	formatNumber = 1
	maxManifest  = 16 << 20
)

// Manifest says what a backup holds.
type Manifest struct {
	Format  int       `json:"format"`
	Program string    `json:"program"` // whose data it is
	Version string    `json:"version"` // that made the backup
	Time    time.Time `json:"time"`
	Files   []File    `json:"files"`
}

// File is one of a backup's files.
type File struct {
	Name   string `json:"name"` // below the data directory, with slashes
	Size   int64  `json:"size"`
	SHA256 string `json:"sha256"`
}

func (m Manifest) size() (n int64) {
	for _, f := range m.Files {
		n += f.Size
	}
	return n
}

// kept says which names in a data directory are data: not locks, files that were never
// finished, and what restores have moved aside.
func kept(name string) bool {
	return name != datadir.LockName && !strings.HasSuffix(name, ".new") &&
		name != datadir.Unfinished && !strings.HasPrefix(name, aside)
}

// list finds and sums the files of a data directory.
func list(dir string, bar io.Writer) (files []File, err error) {
	err = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil || path == dir:
			return err
		case !kept(d.Name()) && d.IsDir():
			return filepath.SkipDir
		case !kept(d.Name()) || !d.Type().IsRegular():
			return nil
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		name, err := filepath.Rel(dir, path)
		files = append(files, File{Name: filepath.ToSlash(name), Size: info.Size()})
		return err
	})
	p := newProgress(bar, "reading", Manifest{Files: files}.size())
	for i := range files {
		if err == nil {
			f := &files[i]
			f.Size, f.SHA256, err = sumOf(filepath.Join(dir, filepath.FromSlash(f.Name)), p)
		}
	}
	return files, err
}

func sumOf(path string, p *progress) (size int64, sum string, err error) {
	f, err := os.Open(path)
	if err != nil {
		return 0, "", err
	}
	defer f.Close()
	h := sha256.New()
	size, err = io.Copy(io.MultiWriter(h, p), f)
	return size, hex.EncodeToString(h.Sum(nil)), err
}

// pack writes a backup. The file gets its name when it is whole.
func pack(dir, path string, m Manifest, p *progress) (err error) {
	out, err := os.OpenFile(path+".part", os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = out.Close()
			_ = os.Remove(path + ".part")
		}
	}()
	z, _ := gzip.NewWriterLevel(out, gzip.BestSpeed) // a valid level
	t := tar.NewWriter(z)
	text, err := json.MarshalIndent(m, "", "  ")
	if err != nil {
		return err
	}
	if err := t.WriteHeader(&tar.Header{Name: manifestName, Mode: 0o600, Size: int64(len(text)), ModTime: m.Time}); err != nil {
		return err
	}
	if _, err := t.Write(text); err != nil {
		return err
	}
	for _, f := range m.Files {
		if err := packFile(t, dir, f, m.Time, p); err != nil {
			return err
		}
	}
	if err := errors.Join(t.Close(), z.Close(), out.Sync(), out.Close()); err != nil {
		return err
	}
	if err := os.Rename(path+".part", path); err != nil {
		return err
	}
	return datadir.Sync(filepath.Dir(path))
}

func packFile(t *tar.Writer, dir string, f File, when time.Time, p *progress) error {
	in, err := os.Open(filepath.Join(dir, filepath.FromSlash(f.Name)))
	if err != nil {
		return err
	}
	defer in.Close()
	if err := t.WriteHeader(&tar.Header{Name: f.Name, Mode: 0o600, Size: f.Size, ModTime: when}); err != nil {
		return err
	}
	_, err = io.Copy(io.MultiWriter(t, p), in)
	return err
}

// readManifest begins to read a backup.
func readManifest(t *tar.Reader) (m Manifest, err error) {
	h, err := t.Next()
	if err != nil || h.Name != manifestName || h.Size > maxManifest {
		return m, errors.New("it doesn't begin like one")
	}
	text, err := io.ReadAll(t)
	if err != nil {
		return m, err
	}
	if err := json.Unmarshal(text, &m); err != nil {
		return m, err
	}
	if m.Format != formatNumber {
		return m, fmt.Errorf("its format is %d, this program reads %d", m.Format, formatNumber)
	}
	for _, f := range m.Files {
		if !filepath.IsLocal(filepath.FromSlash(f.Name)) {
			return m, fmt.Errorf("it names the file %q, outside the directory", f.Name)
		}
	}
	return m, nil
}

// read goes through a backup and checks it. into is where the files go; nil: nowhere.
func read(path string, into func(File) (io.WriteCloser, error), p func(Manifest) *progress) (m Manifest, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("%s is no whole backup: %w", path, err)
		}
	}()
	in, err := os.Open(path)
	if err != nil {
		return m, err
	}
	defer in.Close()
	z, err := gzip.NewReader(in)
	if err != nil {
		return m, err
	}
	t := tar.NewReader(z)
	if m, err = readManifest(t); err != nil {
		return m, err
	}
	if into == nil && p == nil {
		return m, nil // only asked what it is
	}
	bar := p(m)
	for _, f := range m.Files {
		h, err := t.Next()
		if err != nil {
			return m, fmt.Errorf("%s: %w", f.Name, err)
		}
		if h.Name != f.Name || h.Size != f.Size {
			return m, fmt.Errorf("%s is not where it should be", f.Name)
		}
		if err := readFile(t, f, into, bar); err != nil {
			return m, fmt.Errorf("%s: %w", f.Name, err)
		}
	}
	if _, err := t.Next(); !errors.Is(err, io.EOF) {
		return m, errors.New("there is more in it than it says")
	}
	_, err = io.Copy(io.Discard, z) // to the checksum at its end
	return m, err
}

func readFile(t io.Reader, f File, into func(File) (io.WriteCloser, error), p *progress) error {
	h := sha256.New()
	writers := []io.Writer{h, p}
	var out io.WriteCloser
	if into != nil {
		var err error
		if out, err = into(f); err != nil {
			return err
		}
		writers = append(writers, out)
	}
	_, err := io.Copy(io.MultiWriter(writers...), t)
	if out != nil {
		err = errors.Join(err, out.Close())
	}
	if err == nil && hex.EncodeToString(h.Sum(nil)) != f.SHA256 {
		err = errors.New("its checksum is wrong")
	}
	return err
}

// synced is a new file that is on disk when it is closed.
type synced struct{ *os.File }

func (s synced) Close() error { return errors.Join(s.Sync(), s.File.Close()) }

// unpack extracts into a directory, durably.
func unpack(path, dir string, p func(Manifest) *progress) error {
	dirs := map[string]bool{dir: true}
	_, err := read(path, func(f File) (io.WriteCloser, error) {
		name := filepath.Join(dir, filepath.FromSlash(f.Name))
		if err := datadir.Make(filepath.Dir(name)); err != nil {
			return nil, err
		}
		dirs[filepath.Dir(name)] = true
		out, err := os.OpenFile(name, os.O_CREATE|os.O_WRONLY|os.O_EXCL, 0o600)
		return synced{out}, err
	}, p)
	for d := range dirs {
		err = errors.Join(err, datadir.Sync(d))
	}
	return err
}

// progress tells somebody who waits how far it is.
type progress struct {
	out   io.Writer
	what  string
	total int64
	done  int64
	said  time.Time
}

func newProgress(out io.Writer, what string, total int64) *progress {
	return &progress{out: out, what: what, total: total, said: time.Now()}
}

// Write counts bytes.
func (p *progress) Write(b []byte) (int, error) {
	p.done += int64(len(b))
	if time.Since(p.said) > time.Second && p.total > 0 {
		p.said = time.Now()
		fmt.Fprintf(p.out, "%s: %d %% of %d MB\n", p.what, 100*p.done/p.total, p.total>>20)
	}
	return len(b), nil
}
