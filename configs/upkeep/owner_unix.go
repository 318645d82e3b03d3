//go:build unix

package upkeep

import (
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

// giveTo makes what root has restored the property of whoever the directory belongs to.
func giveTo(dir, tree string) error {
	info, err := os.Stat(dir)
	if err != nil {
		return err
	}
	owner, ok := info.Sys().(*syscall.Stat_t)
	if !ok || os.Geteuid() != 0 {
		return nil
	}
	return filepath.WalkDir(tree, func(path string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		return os.Lchown(path, int(owner.Uid), int(owner.Gid))
	})
}
