// SPDX-License-Identifier: Apache-2.0

package backup

import (
	"archive/tar"
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
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

	"golang.org/x/term"

	"github.com/edgebus/edgebus/broker/daemon"
	"github.com/edgebus/edgebus/broker/daemon/datadir"
)

// A backup is a tar file, compressed with gzip. Its first entry lists the others, and its last one has their checksums, in
// the format of sha256sum. A file that ends before it is not a backup.
const (
	manifestName = "edgebus-backup.json"
	sumsName     = "edgebus-backup.sha256"
	formatNumber = 1
	maxManifest  = 16 << 20
)

// Manifest describes a backup.
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
	SHA256 string `json:"sha256,omitempty"`
}

func (m Manifest) size() (n int64) {
	for _, f := range m.Files {
		n += f.Size
	}
	return n
}

// Source is a file as it was at one moment.
type Source interface {
	Path() string
	Size() int64
	Copy(w io.Writer) error // exactly Size bytes
}

// diskFile is a file that does not change.
type diskFile struct {
	path string
	size int64
}

func (f diskFile) Path() string { return f.path }
func (f diskFile) Size() int64  { return f.size }

func (f diskFile) Copy(w io.Writer) error {
	in, err := os.Open(f.path)
	if err != nil {
		return err
	}
	defer in.Close()
	_, err = io.CopyN(w, in, f.size)
	return err
}

// isData reports whether a file in a data directory is data: not a lock, a socket, the audit log, an unfinished file, what can be
// downloaded again, or what a restore has moved aside. The audit log tells what this machine did, whatever data it has: it stays where it is.
func isData(file fs.DirEntry) bool {
	name := file.Name()
	if strings.HasPrefix(name, "audit") && strings.HasSuffix(name, ".log") { // and rotated ones
		return false
	}
	if name == machineState {
		return false
	}
	return name != datadir.LockName && file.Type()&fs.ModeSocket == 0 && name != datadir.RestoreDir && name != datadir.DownloadsDir && name != datadir.HistoryDir &&
		!strings.HasSuffix(name, ".new") && !strings.HasSuffix(name, datadir.ConfirmedSuffix) && !strings.HasSuffix(name, partSuffix) && !strings.HasPrefix(name, asidePrefix)
}

// machineState is a file that says what becomes of the program on this machine, whatever data it has.
const machineState = "drained"

// listFiles finds the files of a data directory, except files and directories to skip.
func listFiles(dir string, skip map[string]bool) (sources []Source, err error) {
	err = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil || path == dir:
			return err
		case d.IsDir() && (!isData(d) || skip[path]):
			return filepath.SkipDir
		case !isData(d) || !d.Type().IsRegular() || skip[path]:
			return nil
		}
		info, err := d.Info()
		if err == nil {
			sources = append(sources, diskFile{path, info.Size()})
		}
		return err
	})
	return sources, err
}

// manifest describes a backup of these files.
func (p Program) manifest(dir string, sources []Source) (Manifest, error) {
	m := Manifest{Format: formatNumber, Program: p.Name, Version: daemon.Version(), Time: time.Now().UTC().Truncate(time.Second)}
	for _, s := range sources {
		name, err := filepath.Rel(dir, s.Path())
		if err != nil {
			return m, err
		}
		m.Files = append(m.Files, File{Name: filepath.ToSlash(name), Size: s.Size()})
	}
	return m, nil
}

// writeTar writes a backup, not compressed. sources are the manifest's files, in its order.
func writeTar(out io.Writer, m Manifest, sources []Source, p *progress) error {
	t := tar.NewWriter(out)
	text, err := json.MarshalIndent(m, "", "  ")
	if err != nil {
		return err
	}
	if err := writeEntry(t, m, manifestName, int64(len(text)), func(w io.Writer) error { return writeAll(w, text) }); err != nil {
		return err
	}
	var sums bytes.Buffer
	for i, f := range m.Files {
		h := sha256.New()
		err := writeEntry(t, m, f.Name, f.Size, func(w io.Writer) error { return sources[i].Copy(io.MultiWriter(w, h, p)) })
		if err != nil {
			return fmt.Errorf("%s: %w", f.Name, err)
		}
		fmt.Fprintf(&sums, "%x  %s\n", h.Sum(nil), f.Name)
	}
	if err := writeEntry(t, m, sumsName, int64(sums.Len()), func(w io.Writer) error { return writeAll(w, sums.Bytes()) }); err != nil {
		return err
	}
	return t.Close()
}

func writeEntry(t *tar.Writer, m Manifest, name string, size int64, fill func(io.Writer) error) error {
	if err := t.WriteHeader(&tar.Header{Name: name, Mode: 0o600, Size: size, ModTime: m.Time}); err != nil {
		return err
	}
	return fill(t)
}

func writeAll(w io.Writer, text []byte) error {
	_, err := w.Write(text)
	return err
}

const partSuffix = ".part"

// writeArchive writes a backup's file. The file gets its name when it is on disk, and check has read it back.
func writeArchive(path string, fill func(io.Writer) error, check func(path string) error) (err error) {
	out, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".*"+partSuffix)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = out.Close()
			_ = os.Remove(out.Name())
		}
	}()
	z, _ := gzip.NewWriterLevel(out, gzip.BestSpeed) // a valid level
	if err := fill(z); err != nil {
		return err
	}
	if err := errors.Join(z.Close(), out.Sync(), out.Close()); err != nil {
		return err
	}
	if err := check(out.Name()); err != nil {
		return err
	}
	if err := os.Rename(out.Name(), path); err != nil {
		return err
	}
	return datadir.SyncDir(filepath.Dir(path))
}

// readManifest reads the first entry of a backup.
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

// readArchive verifies a backup. into gives the writer for each file; if it, or the writer, is nil, the file is only verified.
// Without into and p only the manifest is read.
func readArchive(path string, into func(File) (io.WriteCloser, error), p func(Manifest) *progress) (m Manifest, err error) {
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
		return m, nil
	}
	bar := p(m)
	for i, f := range m.Files {
		if err := nextEntry(t, f.Name, f.Size); err != nil {
			return m, err
		}
		sum, err := readFile(t, f, into, bar)
		if err != nil {
			return m, fmt.Errorf("%s: %w", f.Name, err)
		}
		m.Files[i].SHA256 = sum
	}
	if err := m.check(t); err != nil {
		return m, err
	}
	if _, err := t.Next(); !errors.Is(err, io.EOF) {
		return m, errors.New("there is more in it than it says")
	}
	_, err = io.Copy(io.Discard, z) //nolint:gosec // G110: to the checksum at its end; discarded, not kept
	return m, err
}

var errSum = errors.New("its checksum is wrong")

// nextEntry goes to the next entry, which must have this name and size; -1: any size.
func nextEntry(t *tar.Reader, name string, size int64) error {
	h, err := t.Next()
	if err != nil {
		return fmt.Errorf("%s: %w", name, unexpectedEOF(err))
	}
	if h.Name != name || size >= 0 && h.Size != size {
		return fmt.Errorf("%s is not where it should be", name)
	}
	return nil
}

func unexpectedEOF(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// check compares the checksums in the last entry with those of the files that were read.
func (m Manifest) check(t *tar.Reader) error {
	if err := nextEntry(t, sumsName, -1); err != nil {
		return err
	}
	lines := bufio.NewReader(t)
	for _, f := range m.Files {
		want := fmt.Sprintf("%s  %s\n", f.SHA256, f.Name)
		got := make([]byte, len(want))
		if _, err := io.ReadFull(lines, got); err != nil {
			return fmt.Errorf("%s: %w", sumsName, unexpectedEOF(err))
		}
		if string(got) != want {
			return fmt.Errorf("%s: %w", f.Name, errSum)
		}
	}
	if _, err := lines.ReadByte(); !errors.Is(err, io.EOF) {
		return errors.New("there is more in it than it says")
	}
	return nil
}

// readFile reads one file, and returns its checksum.
func readFile(t io.Reader, f File, into func(File) (io.WriteCloser, error), p *progress) (sum string, err error) {
	h := sha256.New()
	writers := []io.Writer{h, p}
	var out io.WriteCloser
	if into != nil {
		if out, err = into(f); err != nil {
			return "", err
		}
	}
	if out != nil {
		writers = append(writers, out)
	}
	_, err = io.Copy(io.MultiWriter(writers...), t)
	if out != nil {
		err = errors.Join(err, out.Close())
	}
	return hex.EncodeToString(h.Sum(nil)), err
}

// syncedFile is a new file that is on disk when it is closed.
type syncedFile struct{ *os.File }

func (s syncedFile) Close() error { return errors.Join(s.Sync(), s.File.Close()) }

// extractArchive extracts into a directory, durably.
func extractArchive(path, dir string, p func(Manifest) *progress) error {
	dirs := map[string]bool{dir: true}
	_, err := readArchive(path, func(f File) (io.WriteCloser, error) {
		name := filepath.Join(dir, filepath.FromSlash(f.Name))
		if err := datadir.MakeDir(filepath.Dir(name)); err != nil {
			return nil, err
		}
		dirs[filepath.Dir(name)] = true
		out, err := os.OpenFile(name, os.O_CREATE|os.O_WRONLY|os.O_EXCL, 0o600)
		return syncedFile{out}, err
	}, p)
	for d := range dirs {
		err = errors.Join(err, datadir.SyncDir(d))
	}
	return err
}

// progress prints how far a command is, if the output is a terminal, and stops it when ctx ends.
type progress struct {
	ctx   context.Context
	out   io.Writer // nil: no output
	what  string
	total int64
	done  int64
	said  time.Time
}

func newProgress(ctx context.Context, out io.Writer, what string, total int64) *progress {
	if file, is := out.(*os.File); !is || !term.IsTerminal(int(file.Fd())) {
		out = nil
	}
	return &progress{ctx: ctx, out: out, what: what, total: total, said: time.Now()}
}

// Write counts bytes.
func (p *progress) Write(b []byte) (int, error) {
	p.done += int64(len(b))
	if p.out != nil && time.Since(p.said) > time.Second && p.total > 0 {
		p.said = time.Now()
		fmt.Fprintf(p.out, "%s: %d %% of %d MB\n", p.what, 100*p.done/p.total, p.total>>20)
	}
	return len(b), p.ctx.Err()
}
