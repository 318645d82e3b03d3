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

// giveAway lets the service read what root has written: its data belongs to it, and it may read its settings.
func giveAway(file, dir string, fresh bool) error {
	if os.Geteuid() != 0 {
		return nil
	}
	uid, gid := -1, -1
	if info, err := os.Stat(dir); err == nil && !fresh {
		if s, ok := info.Sys().(*syscall.Stat_t); ok {
			uid, gid = int(s.Uid), int(s.Gid)
		}
	} else if u, err := user.Lookup(serviceUser); err == nil && file == configs.File("edgecore", "") {
		uid, err1 := strconv.Atoi(u.Uid)
		gid, err2 := strconv.Atoi(u.Gid)
		if err := errors.Join(err1, err2); err != nil {
			return err
		}
		if err := errors.Join(os.Lchown(dir, uid, gid), chgrp(file, gid)); err != nil {
			return err
		}
		return chownTree(filepath.Join(dir, enroll.DirName), uid, gid)
	}
	if uid < 0 {
		return nil
	}
	return chownTree(filepath.Join(dir, enroll.DirName), uid, gid)
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
