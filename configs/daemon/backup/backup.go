// Package upkeep is the commands that look after a program's data directory: check and restore
// while the program is stopped, and backup, which asks a program that runs for its data. A program
// says what it keeps there; how it is packed, and that nothing is ever written over, is the same for all.
//
// It never repairs: what is damaged is named, and replaced by a backup or begun anew.
package backup

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/pflag"

	"github.com/edgebus/edgebus/configs/daemon/datadir"
)

// Program is what a program knows of its own data.
type Program struct {
	Name string // edgecore
	// DataDir is where the data is by the program's settings. file is the one that --config names.
	DataDir func(file string) (string, error)
	// Survey reads all that is in a directory, and changes nothing.
	Survey func(dir string) []Part
	// Fork makes restored data fit to go on: what was written after the backup may be
	// known elsewhere. stamp is higher at each restore.
	Fork func(dir string, stamp uint32) error
	// Relate says whether files of a directory belong together, which checksums don't say, such as what is
	// encrypted and its key. For a backup those that Related names are unpacked, where it has them.
	Relate  func(dir string) error // nil: none do
	Related []string
}

// Part is one of the places where a program keeps data.
type Part struct {
	Name string // in the data directory
	Has  string // in plain words, what is there
	Err  error  // what is damaged, with the file's name
}

// Main is the command line of one of the commands, and the exit code: 0 well, 1 damaged
// or failed, 2 not understood. mine is false when args are none of them.
func (p Program) Main(args []string, stdout, stderr io.Writer) (code int, mine bool) {
	if len(args) == 0 {
		return 0, false
	}
	run, known := map[string]func(*line) error{"check": p.check, "backup": p.backup, "restore": p.restore}[args[0]]
	if !known {
		return 0, false
	}
	l, err := p.parse(args, stdout, stderr)
	switch {
	case errors.Is(err, pflag.ErrHelp):
		return 0, true
	case err != nil:
		fmt.Fprintf(stderr, "%s %s: %v\n", p.Name, args[0], err)
		return 2, true
	}
	if err := run(l); err != nil {
		fmt.Fprintf(stderr, "%s %s: %v\n", p.Name, args[0], err)
		return 1, true
	}
	return 0, true
}

// line is a command line.
type line struct {
	ctx           context.Context // ends when somebody says so
	out, err      io.Writer
	dir           string
	file          string
	force, dryRun bool
}

func (p Program) parse(args []string, stdout, stderr io.Writer) (*line, error) {
	l := &line{ctx: context.Background(), out: stdout, err: stderr}
	flags := pflag.NewFlagSet(args[0], pflag.ContinueOnError)
	flags.SetOutput(stdout)
	flags.Usage = func() { fmt.Fprint(stdout, help(p.Name, args[0]), flags.FlagUsages()) }
	config := flags.String("config", "", "file of settings, which says where the data is")
	flags.StringVar(&l.dir, "data-dir", "", "the data directory (default: where the settings say)")
	if args[0] != "check" {
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
	if args[0] == "check" && flags.NArg() == 0 {
		flags.SetInterspersed(true)
	} else if flags.NArg() != 1 {
		return nil, fmt.Errorf("it takes one name: %s; see --help", usage(p.Name, args[0]))
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

func usage(program, command string) string {
	return fmt.Sprintf("%s %s %s", program, command, map[string]string{
		"check": "[DIRECTORY|FILE]", "backup": "FILE", "restore": "FILE",
	}[command])
}

func help(program, command string) string {
	return map[string]string{
		"check": `Reads the data of a program that is stopped, or a backup, from end to end: checksums, structure,
counters, and that the key opens what is encrypted. Says what is there, what is damaged, and what to do. Changes nothing.
The exit code is 0 if all is well, and 1 if something is damaged.
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
	}[command] + "\nUsage:\n  " + usage(program, command) + "\n\nFlags:\n"
}

// check surveys a directory, or reads a backup.
func (p Program) check(l *line) error {
	path := l.dir
	if l.file != "" {
		path = l.file
	}
	if info, err := os.Stat(path); err == nil && !info.IsDir() {
		defer l.interruptible()()
		m, err := p.whole(l, path)
		if err == nil {
			fmt.Fprintf(l.out, "%s is whole: %s\n", path, describe(m))
		}
		return err
	}
	dir, err := datadir.Look(path)
	if err != nil {
		return err
	}
	defer dir.Close()
	fmt.Fprintln(l.out, path)
	if err := p.report(path, l.out); err != nil {
		return err
	}
	fmt.Fprintln(l.out, "All is well.")
	return nil
}

// report says what is in a directory, and counts what is damaged.
func (p Program) report(dir string, out io.Writer) error {
	parts := p.Survey(dir)
	damaged := 0
	for _, part := range parts {
		if part.Err != nil {
			damaged++
			fmt.Fprintf(out, "  %-11s DAMAGED: %v\n", part.Name, part.Err)
			continue
		}
		fmt.Fprintf(out, "  %-11s %s\n", part.Name, part.Has)
	}
	if damaged > 0 {
		return fmt.Errorf("%d of %d parts are damaged: %s won't start like this. Put them back from a backup (%s restore FILE), "+
			"or move what is damaged away to begin anew without it", damaged, len(parts), p.Name, p.Name)
	}
	return nil
}

func describe(m Manifest) string {
	return fmt.Sprintf("data of %s, %d files, %d bytes, of %s", m.Program, len(m.Files), m.size(), m.Time.Format(time.RFC3339))
}

func (p Program) verify(l *line, path string) (Manifest, error) {
	return read(path, nil, l.checking)
}

func (l *line) checking(m Manifest) *progress {
	return newProgress(l.ctx, l.err, "checking the backup", m.size())
}

// interruptible has a signal end what l does, which then cleans up.
func (l *line) interruptible() (stop func()) {
	ctx, stop := signal.NotifyContext(l.ctx, os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // the next signal is not caught
	l.ctx = ctx
	return stop
}

// backup packs a directory into a file: by itself, or with what the program gives that runs there.
func (p Program) backup(l *line) error {
	if _, err := os.Stat(l.file); err == nil && !l.force {
		return fmt.Errorf("%s is there already: choose another name, or say --force to replace it", l.file)
	}
	defer l.interruptible()()
	var from func(io.Writer) error
	dir, err := datadir.Look(l.dir)
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
	err = pack(l.file, from, func(path string) (err error) {
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
	fmt.Fprintf(l.out, "%s: %s\n", l.file, describe(m))
	return nil
}

// stopped checks the data of a program that is stopped. What it returns writes a backup, not compressed.
func (p Program) stopped(l *line) (from func(io.Writer) error, err error) {
	fmt.Fprintln(l.out, l.dir)
	if err := p.report(l.dir, l.out); err != nil && !l.force {
		return nil, fmt.Errorf("%w. A backup of it as it is can be made with --force", err)
	}
	sources, err := list(l.dir, nil)
	if err != nil {
		return nil, err
	}
	m, err := p.manifest(l.dir, sources)
	return func(w io.Writer) error {
		return stream(w, m, sources, newProgress(l.ctx, l.err, "writing", m.size()))
	}, err
}

// ProgramOf says which program's data a directory or a backup holds.
func ProgramOf(path string) (string, error) {
	info, err := os.Stat(path)
	if err != nil {
		return "", err
	}
	if !info.IsDir() {
		m, err := read(path, nil, nil)
		return m.Program, err
	}
	switch owners := datadir.Owners(path); len(owners) {
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
	return "", fmt.Errorf("%s is no data directory: it has neither hub.db, as a hub's, nor tree, as a core's; it has: %s",
		path, strings.Join(has, ", "))
}
