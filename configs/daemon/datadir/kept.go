package datadir

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"
)

// Kept is a file, or a directory, that has to stay where it is while a program uses it.
type Kept struct {
	path string
	info os.FileInfo
}

// Keep takes note of what is at a path, which the program has just opened or made.
func Keep(path string) (Kept, error) {
	info, err := os.Stat(path)
	return Kept{path, info}, err
}

// InPlace says whether it was removed, moved or replaced: what is written to it now is not there
// at the next start.
func (k Kept) InPlace() error {
	now, err := os.Stat(k.path)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return fmt.Errorf("%s was removed or moved while it was in use; %s", k.path, goneAdvice)
	case err == nil && !os.SameFile(k.info, now):
		return fmt.Errorf("%s was replaced while it was in use; %s", k.path, goneAdvice)
	}
	return nil // whatever else keeps it from being looked at, says nothing of it
}

const goneAdvice = "stop the program, put the data directory back as it was or restore it from a backup, and start the program again"

// checkEvery is how often a Guard looks.
const checkEvery = 250 * time.Millisecond

// Guard watches over a data directory that is in use.
type Guard struct {
	checks []func() error
	log    zerolog.Logger
	gone   atomic.Pointer[error]
}

// Guard makes a guard of the directory, and of what else the checks look at.
func (d *Dir) Guard(log zerolog.Logger, checks ...func() error) *Guard {
	return &Guard{checks: append([]func() error{d.InPlace}, checks...), log: log}
}

// InPlace says whether the directory was removed, moved or replaced, or its lock.
func (d *Dir) InPlace() error {
	if err := d.dir.InPlace(); err != nil {
		return err
	}
	return d.held.InPlace()
}

// Err says what is gone; nil: nothing.
func (g *Guard) Err() error {
	if p := g.gone.Load(); p != nil {
		return *p
	}
	return nil
}

// Run looks until ctx ends, and tells the log what is gone, once.
func (g *Guard) Run(ctx context.Context) error {
	tick := time.NewTicker(checkEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			g.look()
		}
	}
}

func (g *Guard) look() {
	var err error
	for _, check := range g.checks {
		if err = check(); err != nil {
			break
		}
	}
	switch was := g.Err(); {
	case err != nil && was == nil:
		g.log.Error().Err(err).Msg("the data directory is not what it was: nothing more is acknowledged")
	case err == nil && was != nil:
		g.log.Info().Msg("the data directory is what it was")
	}
	g.gone.Store(&err)
}
