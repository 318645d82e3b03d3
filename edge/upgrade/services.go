// SPDX-License-Identifier: Apache-2.0

package upgrade

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/rs/zerolog"

	"github.com/edgebus/edgebus/topics/resource"
)

// services are those of upgrade.services.
type services struct {
	names    []string
	unit     func(name string) Unit
	versions versionDir
	log      zerolog.Logger
}

// followingService is a service of systemd whose process is a program of a version, such as a mapper: it follows the core from version to version.
type followingService struct {
	Unit
	name, version, program string
}

// running are the services of upgrade.services that run a program below versions/. Those that don't run, or run another program, are left alone.
func (s services) running(ctx context.Context) (list []followingService) {
	if s.unit == nil {
		return nil
	}
	dir, err := filepath.EvalSymlinks(filepath.Join(s.versions.dir, "versions"))
	if err != nil {
		return nil
	}
	for _, name := range s.names {
		f := followingService{Unit: s.unit(name), name: name}
		pid, err := f.MainPID(ctx)
		if err != nil || pid == 0 {
			continue
		}
		exe, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid))
		if err != nil {
			s.log.Warn().Err(err).Str("service", name).Msg("the program of a service can't be read")
			continue
		}
		exe = strings.TrimSuffix(exe, " (deleted)")
		if f.program = filepath.Base(exe); filepath.Dir(filepath.Dir(exe)) == dir {
			f.version = filepath.Base(filepath.Dir(exe))
			list = append(list, f)
		}
	}
	return list
}

// checkPrograms fails if a version lacks the program of a service, which could not start any more.
func (s services) checkPrograms(ctx context.Context, programs []resource.ArtifactProgram) error {
	for _, f := range s.running(ctx) {
		if !slices.ContainsFunc(programs, func(p resource.ArtifactProgram) bool { return p.Name == f.program }) {
			return failf(resource.UpgradeFailedArtifact, "the version has no %s for this host, which %s runs: add it to the Artifact, or have the unit start a program elsewhere", f.program, f.name)
		}
	}
	return nil
}

// follow starts the services again whose programs are not those of the version that runs.
func (s services) follow(ctx context.Context) error {
	var all []error
	current := s.versions.linked(linkCurrent)
	for _, f := range s.running(ctx) {
		if f.version == current || !s.versions.has(current, f.program) {
			continue
		}
		err := f.Restart(ctx)
		if err != nil {
			err = fmt.Errorf("%s can't be started again: %w", f.name, err)
			all = append(all, err)
		}
		s.log.Info().Err(err).Str("service", f.name).Str("version", current).Msg("a service is started again")
	}
	return errors.Join(all...)
}
