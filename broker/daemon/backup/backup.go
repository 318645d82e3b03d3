// SPDX-License-Identifier: Apache-2.0

package backup

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/pflag"

	"github.com/edgebus/edgebus/broker/daemon/datadir"
)

// Program is what a program says about its data.
type Program struct {
	Name string // edgecore
	// Command is as what one of the commands was given, for messages; empty: Name and the command.
	Command string
	// DataDir is where the data is by the program's settings. file is the one that --config names.
	DataDir func(file string) (string, error)
	// Survey reads all that is in a directory, and changes nothing.
	Survey func(dir string) []DataPart
	// NewLineages begins new lineages in restored data, because what was written after the backup may be known elsewhere.
	// stamp is higher at each restore.
	NewLineages func(dir string, stamp uint32) error
	// AfterRestore is what to do with restored data; empty: to start the program.
	AfterRestore string
	// CheckRelated checks that files of a directory belong together, such as encrypted data and its key. To check a backup the
	// files and directories that RelatedFiles names are unpacked.
	CheckRelated func(dir string) error // nil: there are none
	RelatedFiles []string
	// Rotate makes a new key for what the directory has encrypted, while the program is stopped, and says what it did. Nil: there is no
	// command rotate-key.
	Rotate func(ctx context.Context, dir string) (said string, err error)
	// TakeAuthority gives the authority of another directory to a directory that has none, and says what it took. No program uses either.
	// Nil: there is no command take-authority.
	TakeAuthority func(from, dir string) (said string, err error)
	// CheckCopy checks that a directory has a copy of another one's data that can go on in its place, and says what it has. Nil: there is no
	// command takeover.
	CheckCopy func(dir string) (said string, err error)
	// TakeOver is NewLineages for a copy: the data is another's from then on.
	TakeOver func(dir string, stamp uint32) error
}

// DataPart is one of the places where a program keeps data.
type DataPart struct {
	Name     string // in the data directory
	Contents string // what is there, for people
	Err      error  // what is damaged, with the file's name
	Unread   bool   // this program can't read what is there, and Err says why: that is no damage
}

// Main runs one of the commands, and returns the exit code: 0 success, 1 damage or failure, 2 wrong usage, 3 check could not check. mine
// is false if args are none of the commands.
func (p Program) Main(args []string, stdout, stderr io.Writer) (code int, mine bool) {
	if len(args) == 0 {
		return 0, false
	}
	run, known := map[string]func(*commandLine) error{"check": p.check, "backup": p.backup, "restore": p.restore, "rotate-key": p.rotate, "take-authority": p.takeAuthority, "takeover": p.takeOver}[args[0]]
	if !known || args[0] == "rotate-key" && p.Rotate == nil || args[0] == "takeover" && p.CheckCopy == nil || args[0] == "take-authority" && p.TakeAuthority == nil {
		return 0, false
	}
	command := cmp.Or(p.Command, p.Name+" "+args[0])
	l, err := p.parse(args, stdout, stderr)
	switch {
	case errors.Is(err, pflag.ErrHelp):
		return 0, true
	case err != nil:
		fmt.Fprintf(stderr, "%s: %v\n", command, err)
		return 2, true
	}
	if err := run(l); err != nil {
		fmt.Fprintf(stderr, "%s: %v\n", command, err)
		if args[0] == "check" && isUnreadable(err) {
			return 3, true
		}
		return 1, true
	}
	return 0, true
}

// commandLine is a command line.
type commandLine struct {
	ctx           context.Context // ends with SIGINT and SIGTERM
	out, err      io.Writer
	dir           string
	file          string
	force, dryRun bool
}

func (p Program) parse(args []string, stdout, stderr io.Writer) (*commandLine, error) {
	l := &commandLine{ctx: context.Background(), out: stdout, err: stderr}
	flags := pflag.NewFlagSet(args[0], pflag.ContinueOnError)
	flags.SetOutput(stdout)
	flags.Usage = func() { fmt.Fprint(stdout, helpText(p.Name, args[0]), flags.FlagUsages()) }
	config := flags.String("config", "", "file of settings, which says where the data is")
	flags.StringVar(&l.dir, "data-dir", "", "the data directory (default: where the settings say)")
	if args[0] == "backup" || args[0] == "restore" {
		flags.BoolVar(&l.force, "force", false, map[string]string{
			"backup":  "replace FILE, and back up what is damaged, too",
			"restore": "move aside what is in the directory",
		}[args[0]])
	}
	if args[0] == "restore" {
		flags.BoolVar(&l.dryRun, "dry-run", false, "check the backup and say what would be done")
	}
	if err := flags.Parse(args[1:]); err != nil {
		return nil, err
	}
	switch n := flags.NArg(); {
	case (args[0] == "rotate-key" || args[0] == "takeover") && n > 0:
		return nil, fmt.Errorf("it takes no name: %s; see --help", usageLine(p.Name, args[0]))
	case args[0] != "rotate-key" && args[0] != "takeover" && n != 1 && !(args[0] == "check" && n == 0):
		return nil, fmt.Errorf("it takes one name: %s; see --help", usageLine(p.Name, args[0]))
	}
	l.file = flags.Arg(0)
	var err error
	if l.dir == "" {
		if l.dir, err = p.DataDir(*config); err != nil {
			return nil, err
		}
	}
	l.dir, err = filepath.Abs(l.dir)
	return l, err
}

func usageLine(program, command string) string {
	return strings.TrimSpace(fmt.Sprintf("%s %s %s", program, command, map[string]string{
		"check": "[DIRECTORY|FILE]", "backup": "FILE", "restore": "FILE", "take-authority": "OLD-DIRECTORY",
	}[command]))
}

func helpText(program, command string) string {
	return map[string]string{
		"check": `Reads the data of a program that is stopped, or a backup, from end to end: checksums, structure,
counters, and that the key opens what is encrypted. Says what is there, what is damaged, and what to do. Changes nothing.
The exit code is 0 if all is well, 1 if something is damaged, 2 if the command line is not valid, and 3 if it
could not be checked: the program runs, there is no such file, it can't be read, or the command was interrupted.
`,
		"backup": `Writes all data into FILE (a tar file, compressed, with a checksum of every file). A program that
runs is asked for it, and goes on meanwhile: FILE has everything that was acknowledged before,
as it was at one moment. Of one that is stopped the data is checked first. Secrets that the key in FILE
doesn't open are damage.

FILE gets its name when all of it is on disk and was read back; what a backup that was killed leaves
is called FILE.….part. FILE holds whatever the data holds, such as values, the names of users, and
Secrets with their key: keep it as safe. Only the data's owner, and root, can make one.
The exit code is 0 if FILE is whole, and 1 if there is none.
`,
		"restore": `Puts the data of a backup into an empty data directory, checks it, and makes it fit to go
on: what was written after the backup is known to others, so the data begins a new lineage,
and versions and revisions go on far above all that were ever given. Start the program then:
each side of the link sends the other what it lacks.

What was acknowledged after the backup and is known to nobody else is lost. Messages that
were queued in the backup, and delivered since, are delivered again.
`,
		"rotate-key": `Makes a new key for Secrets, encrypts all of them with it, and deletes the old key. A hub that
runs does it, and goes on meanwhile. If it is interrupted, both keys stay in secrets.key, and the
next start of the hub, or this command, goes on. Each Secret gets a new resourceVersion; its values, and what
nodes have of it, don't change. Backups that were made before have the old key: make a new one, and
delete those if the old key is to open nothing.
`,
		"take-authority": `Copies the authority of a hub that is stopped, with its revocations, from its data directory into
one of a hub that was never started: nodes then trust the new hub, and it trusts their certificates, so that
none has to join again. The old directory may be of a format that this program doesn't read, or be what
"tar xzf BACKUP authority" unpacks. Start only one of the two hubs then: what one revokes the other would not know.
`,
		"takeover": `Makes the copy that cloudhub follow keeps fit to go on in the place of the hub that it is of, as a restore does: the
data begins a new lineage, and versions and revisions go on far above all that were ever given. What that hub acknowledged after the copy
had it is lost, unless nodes and clients send it again; how old the copy is is printed.

Make sure first that the other hub is stopped and stays so: nodes, users and clients would have two hubs otherwise.
It is checked before that all is there, the keys included. If it is interrupted, do it again.
`,
	}[command] + "\nUsage:\n  " + usageLine(program, command) + "\n\nFlags:\n"
}

// unreadableError is why data can't be checked.
type unreadableError struct{ error }

func (e unreadableError) Unwrap() error { return e.error }

// isUnreadable reports whether an error is of reading data, so that it says nothing about the data.
func isUnreadable(err error) bool {
	reasons := []error{os.ErrPermission, context.Canceled, syscall.EMFILE, syscall.ENFILE, syscall.ENOMEM, syscall.ENOSPC, syscall.EDQUOT, syscall.EROFS}
	return errors.As(err, new(unreadableError)) || slices.ContainsFunc(reasons, func(reason error) bool { return errors.Is(err, reason) })
}

// check checks a directory or a backup.
func (p Program) check(l *commandLine) error {
	path := cmp.Or(l.file, l.dir)
	if info, err := os.Stat(path); err == nil && !info.IsDir() {
		defer l.interruptible()()
		m, err := p.whole(l, path)
		if err == nil {
			fmt.Fprintf(l.out, "%s is whole: %s\n", path, describeManifest(m))
		}
		return err
	}
	dir, err := datadir.OpenReadOnly(path)
	if err != nil {
		return unreadableError{err}
	}
	defer dir.Close()
	fmt.Fprintln(l.out, path)
	if err := p.report(path, l.out); err != nil {
		return err
	}
	if _, err := os.Stat(filepath.Join(path, datadir.RestoreDir)); err == nil {
		return fmt.Errorf("putting a backup back into %s was not finished: do it again, with --force", path)
	}
	fmt.Fprintln(l.out, "All is well.")
	return nil
}

// report prints what is in a directory, and fails if anything is damaged.
func (p Program) report(dir string, out io.Writer) error {
	parts := p.Survey(dir)
	damaged := 0
	var unread error
	for _, part := range parts {
		switch {
		case part.Unread, isUnreadable(part.Err):
			unread = unreadableError{fmt.Errorf("%s can't be read: %w", part.Name, part.Err)}
			fmt.Fprintf(out, "  %-11s can't be read: %v\n", part.Name, part.Err)
			continue
		case part.Err != nil:
			damaged++
			fmt.Fprintf(out, "  %-11s DAMAGED: %v\n", part.Name, part.Err)
			continue
		}
		fmt.Fprintf(out, "  %-11s %s\n", part.Name, part.Contents)
	}
	if damaged > 0 {
		return fmt.Errorf("%d of %d parts are damaged: %s won't start like this. Put them back from a backup (%s restore FILE), "+
			"or move what is damaged away to begin anew without it", damaged, len(parts), p.Name, p.Name)
	}
	return unread
}

func describeManifest(m Manifest) string {
	return fmt.Sprintf("data of %s, %d files, %d bytes, of %s", m.Program, len(m.Files), m.size(), m.Time.Format(time.RFC3339))
}

// rotate makes a new key.
func (p Program) rotate(l *commandLine) error {
	defer l.interruptible()()
	said, err := "", datadir.RefuseOtherProgram(l.dir, p.Name)
	if err != nil {
		return err
	}
	dir, err := datadir.OpenReadOnly(l.dir)
	var used *datadir.InUse
	switch {
	case errors.As(err, &used):
		said, err = l.rotateRunning(used)
	case err == nil:
		if len(datadir.OwningPrograms(l.dir)) == 0 {
			return errors.Join(fmt.Errorf("%s has no data of %s", l.dir, p.Name), dir.Close())
		}
		said, err = p.Rotate(l.ctx, l.dir)
		err = errors.Join(err, dir.Close())
	}
	if err != nil {
		return err
	}
	fmt.Fprintln(l.out, said)
	return nil
}

// takeOver makes a copy fit to go on.
func (p Program) takeOver(l *commandLine) error {
	dir, err := datadir.Open(l.dir, p.Name)
	if err != nil {
		return err
	}
	defer dir.Close()
	said, err := p.CheckCopy(l.dir)
	if err != nil {
		return err
	}
	fmt.Fprintln(l.out, l.dir)
	if err := p.report(l.dir, l.out); err != nil {
		return err
	}
	n := restoreStamp(time.Now(), l.dir)
	if err := datadir.WriteFile(filepath.Join(l.dir, StampFile), fmt.Appendln(nil, n)); err != nil { // before: the next attempt has a higher one
		return err
	}
	if err := errors.Join(p.TakeOver(l.dir, n), datadir.CopyOwner(l.dir, l.dir)); err != nil {
		return err
	}
	fmt.Fprintf(l.out, "%s\n%s can go on. Start %s, and never again the one that it was copied from: that may follow this one.\n", said, l.dir, p.Name)
	return nil
}

func (p Program) takeAuthority(l *commandLine) error {
	if err := datadir.RefuseOtherProgram(l.file, p.Name); err != nil {
		return err
	}
	old, err := datadir.OpenReadOnly(l.file)
	if err != nil {
		return err
	}
	defer old.Close()
	dir, err := datadir.Open(l.dir, p.Name)
	if err != nil {
		return err
	}
	defer dir.Close()
	said, err := p.TakeAuthority(l.file, l.dir)
	if err == nil {
		err = datadir.CopyOwner(l.file, l.dir)
	}
	if err == nil {
		fmt.Fprintln(l.out, said)
	}
	return err
}

func (l *commandLine) checking(m Manifest) *progress {
	return newProgress(l.ctx, l.err, "checking the backup", m.size())
}

// interruptible ends l.ctx with a signal, so that the command cleans up.
func (l *commandLine) interruptible() (stop func()) {
	ctx, stop := signal.NotifyContext(l.ctx, os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // the next signal is not caught
	l.ctx = ctx
	return stop
}

// backup packs a directory into a file, with the help of the program that uses it, if there is one.
func (p Program) backup(l *commandLine) error {
	if _, err := os.Stat(l.file); err == nil && !l.force {
		return fmt.Errorf("%s is there already: choose another name, or say --force to replace it", l.file)
	}
	defer l.interruptible()()
	var from func(io.Writer) error
	dir, err := datadir.OpenReadOnly(l.dir)
	var used *datadir.InUse
	switch {
	case errors.As(err, &used):
		from = func(w io.Writer) error { return l.running(w, used) }
	case err != nil:
		return err
	default:
		defer dir.Close()
		if from, err = p.stopped(l); err != nil {
			return err
		}
	}
	var m Manifest
	err = writeArchive(l.file, from, func(path string) (err error) {
		var damage error
		m, damage, err = p.inspect(l, path)
		switch {
		case err != nil || damage == nil:
			return err
		case !l.force:
			return fmt.Errorf("%w. A backup of it as it is can be made with --force", damage)
		}
		fmt.Fprintf(l.err, "DAMAGED: %v\n", damage)
		return nil
	})
	if err != nil {
		return err
	}
	fmt.Fprintf(l.out, "%s: %s\n", l.file, describeManifest(m))
	return nil
}

// stopped checks the data of a program that is stopped. from writes a backup of it, not compressed.
func (p Program) stopped(l *commandLine) (from func(io.Writer) error, err error) {
	fmt.Fprintln(l.out, l.dir)
	if err := p.report(l.dir, l.out); err != nil && !l.force {
		return nil, fmt.Errorf("%w. A backup of it as it is can be made with --force", err)
	}
	sources, err := listFiles(l.dir, nil)
	if err != nil {
		return nil, err
	}
	m, err := p.manifest(l.dir, sources)
	return func(w io.Writer) error {
		return writeTar(w, m, sources, newProgress(l.ctx, l.err, "writing", m.size()))
	}, err
}

// ProgramOf says which program's data a directory or a backup holds.
func ProgramOf(path string) (string, error) {
	info, err := os.Stat(path)
	if err != nil {
		return "", err
	}
	if !info.IsDir() {
		m, err := readArchive(path, nil, nil)
		return m.Program, err
	}
	switch owners := datadir.OwningPrograms(path); len(owners) {
	case 0:
	case 1:
		return owners[0], nil
	default:
		return "", fmt.Errorf("%s holds data of both %s: move what does not belong there away", path, strings.Join(owners, " and "))
	}
	names, err := os.ReadDir(path)
	if err != nil {
		return "", err
	}
	var has []string
	for _, n := range names {
		has = append(has, n.Name())
	}
	return "", fmt.Errorf("%s is no data directory: it has neither log, as a hub's, nor tree, as a core's; it has: %s",
		path, strings.Join(has, ", "))
}

// asidePrefix is the prefix of the directory that keeps what was there before a restore.
const asidePrefix = "before-restore-"

// restore puts a backup into a directory. The data is prepared in a subdirectory, and takes its place when it is complete.
// The programs refuse a directory in which a restore was interrupted.
func (p Program) restore(l *commandLine) error {
	var m Manifest
	var err error
	if l.dryRun {
		defer l.interruptible()()
		m, err = p.whole(l, l.file)
	} else { // prepare checks the data itself
		m, err = readArchive(l.file, nil, l.checking)
	}
	if err != nil {
		return err
	}
	if m.Program != p.Name {
		return fmt.Errorf("%s has data of %s: use %s restore", l.file, m.Program, m.Program)
	}
	if err := datadir.RefuseOtherProgram(l.dir, p.Name); err != nil { // also with --force: it is other data
		return err
	}
	old, err := listData(l.dir)
	if err != nil {
		return err
	}
	moveTo := unusedName(filepath.Join(l.dir, asidePrefix+time.Now().UTC().Format("20060102T150405Z")))
	fmt.Fprintf(l.out, "%s is whole: %s\n", l.file, describeManifest(m))
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
	dir, err := datadir.Lock(l.dir, p.Name+" restore")
	if err != nil {
		return err
	}
	defer dir.Close()
	if err := datadir.CopyOwner(l.dir, filepath.Join(l.dir, datadir.LockName)); err != nil {
		return err
	}
	if err := p.prepare(l); err != nil {
		return errors.Join(err, os.RemoveAll(filepath.Join(l.dir, datadir.RestoreDir)))
	}
	if err := swapData(l.dir, old, moveTo); err != nil {
		return err
	}
	next := cmp.Or(p.AfterRestore, fmt.Sprintf("Start %s: what the other side has seen since, it sends again.", p.Name))
	fmt.Fprintf(l.out, "%s has the data of %s again. %s\n", l.dir, m.Time.Format(time.RFC3339), next)
	return nil
}

// unusedName is path, or path with a number, that does not exist.
func unusedName(path string) string {
	for n, name := 2, path; ; n++ {
		if _, err := os.Lstat(name); err != nil {
			return name
		}
		name = fmt.Sprintf("%s-%d", path, n)
	}
}

// listData lists the data in a directory.
func listData(dir string) (names []string, err error) {
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	for _, e := range entries {
		if isData(e) {
			names = append(names, e.Name())
		}
	}
	return names, nil
}

// prepare extracts, checks and forks, in a directory of its own.
func (p Program) prepare(l *commandLine) error {
	fresh := filepath.Join(l.dir, datadir.RestoreDir)
	if err := os.RemoveAll(fresh); err != nil {
		return err
	}
	if err := datadir.MakeDir(fresh); err != nil {
		return err
	}
	err := extractArchive(l.file, fresh, func(m Manifest) *progress { return newProgress(l.ctx, l.err, "restoring", m.size()) })
	if err != nil {
		return err
	}
	if err := p.report(fresh, l.out); err != nil {
		return fmt.Errorf("the backup was made of damaged data: %w", err)
	}
	n := restoreStamp(time.Now(), l.dir)
	if err := p.NewLineages(fresh, n); err != nil {
		return err
	}
	if err := datadir.WriteFile(filepath.Join(fresh, StampFile), fmt.Appendln(nil, n)); err != nil {
		return err
	}
	return datadir.CopyOwner(l.dir, fresh)
}

// swapData moves what is there aside, and what was prepared into its place.
func swapData(dir string, old []string, moveTo string) error {
	if len(old) > 0 {
		if err := errors.Join(datadir.MakeDir(moveTo), datadir.CopyOwner(dir, moveTo)); err != nil {
			return err
		}
		for _, name := range old {
			if err := os.Rename(filepath.Join(dir, name), filepath.Join(moveTo, name)); err != nil {
				return err
			}
		}
		if err := datadir.SyncDir(moveTo); err != nil {
			return err
		}
	}
	fresh := filepath.Join(dir, datadir.RestoreDir)
	entries, err := os.ReadDir(fresh)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if err := os.Rename(filepath.Join(fresh, e.Name()), filepath.Join(dir, e.Name())); err != nil {
			return err
		}
	}
	if err := datadir.SyncDir(dir); err != nil {
		return err
	}
	return errors.Join(os.Remove(fresh), datadir.SyncDir(dir))
}

// StampFile is where a restored directory says what its stamp was.
const StampFile = "restored"

// restoreStamp is the upper half of versions after a restore: hours since 2025, which rise from
// one restore to the next, and keep versions exact in a JSON number for two centuries. A
// directory that was restored within the hour says so, and gets the next one.
func restoreStamp(now time.Time, dir string) uint32 {
	n := uint32(max(now.Sub(time.Date(2025, 1, 1, 0, 0, 0, 0, time.UTC))/time.Hour, 0))
	text, err := os.ReadFile(filepath.Join(dir, StampFile))
	if err != nil {
		return n
	}
	last, err := strconv.ParseUint(strings.TrimSpace(string(text)), 10, 21)
	if err != nil {
		return n
	}
	return max(n, uint32(last)+1)
}

// inspect verifies a backup's checksums, and that its files belong together. If they don't, that is returned as damage and
// not as an error: a backup of damaged data may be wanted.
func (p Program) inspect(l *commandLine, path string) (m Manifest, damage, err error) {
	if p.CheckRelated == nil {
		m, err = readArchive(path, nil, l.checking)
		return m, nil, err
	}
	dir, err := tempDir(path)
	if err != nil {
		return m, nil, err
	}
	defer os.RemoveAll(dir) // if this process is killed, the name says what it is
	m, err = readArchive(path, func(f File) (io.WriteCloser, error) {
		top, _, below := strings.Cut(f.Name, "/")
		if !slices.Contains(p.RelatedFiles, top) {
			return nil, nil
		}
		if below {
			if err := os.MkdirAll(filepath.Join(dir, filepath.Dir(f.Name)), 0o700); err != nil {
				return nil, err
			}
		}
		return os.OpenFile(filepath.Join(dir, f.Name), os.O_CREATE|os.O_WRONLY|os.O_EXCL, 0o600)
	}, l.checking)
	if err != nil || m.Program != p.Name {
		return m, nil, err
	}
	if err := p.CheckRelated(dir); err != nil {
		damage = fmt.Errorf("the data in %s is damaged: %w", cmp.Or(l.file, path), err) // l.file also while the backup has another name
	}
	return m, damage, nil
}

// whole is inspect with damage as an error.
func (p Program) whole(l *commandLine, path string) (Manifest, error) {
	m, damage, err := p.inspect(l, path)
	return m, errors.Join(err, damage)
}

// tempDir makes a directory to unpack into: beside the backup, where there is enough space, with the same protection; or in
// the system's directory for temporary files if that can't be written.
func tempDir(path string) (string, error) {
	dir, err := os.MkdirTemp(filepath.Dir(path), filepath.Base(path)+".*"+partSuffix)
	if err != nil {
		dir, err = os.MkdirTemp("", filepath.Base(path)+".*"+partSuffix)
	}
	return dir, err
}
