// SPDX-License-Identifier: Apache-2.0

//go:build unix

package edge

import (
	"cmp"
	"errors"
	"io/fs"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"syscall"

	"github.com/edgebus/edgebus/configs"
	"github.com/edgebus/edgebus/edge/enroll"
)

// serviceUser is who the service runs as.
const serviceUser = "edgebus-core"

// chownForService lets the service read what root has written: its data belongs to it, and it may read its settings. A data
// directory of another user keeps its owner.
func chownForService(file, dir string) error {
	if os.Geteuid() != 0 {
		return nil
	}
	uid, gid := 0, 0
	if info, err := os.Stat(dir); err == nil {
		if s, ok := info.Sys().(*syscall.Stat_t); ok {
			uid, gid = int(s.Uid), int(s.Gid)
		}
	}
	identities := filepath.Join(dir, enroll.DirName)
	u, err := user.Lookup(serviceUser)
	if err != nil || file != configs.SystemFile("edgecore") { // it is not the service's
		return chownTree(identities, uid, gid)
	}
	serviceUID, err1 := strconv.Atoi(u.Uid)
	serviceGID, err2 := strconv.Atoi(u.Gid)
	if err := errors.Join(err1, err2); err != nil {
		return err
	}
	switch uid {
	case 0: // made by join, or by a core that was run as root
		return errors.Join(chownTree(dir, serviceUID, serviceGID), chgrp(file, serviceGID))
	case serviceUID:
		return errors.Join(chownTree(identities, serviceUID, serviceGID), chgrp(file, serviceGID))
	}
	return chownTree(identities, uid, gid)
}

func chgrp(file string, gid int) error {
	err := os.Lchown(file, -1, gid)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

func chownTree(dir string, uid, gid int) error {
	return filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		return cmp.Or(err, os.Lchown(path, uid, gid))
	})
}
