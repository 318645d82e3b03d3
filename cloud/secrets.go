package cloud

import (
	"context"
	"errors"
	"fmt"
	"io/fs"

	"github.com/edgebus/edgebus/cloud/seal"
	"github.com/edgebus/edgebus/cloud/store"
	"github.com/edgebus/edgebus/topics/resource"
)

// sealer reads the key of Secrets, or makes one if there are no Secrets yet.
func sealer(dir string, st store.Reader) (*seal.Key, error) {
	key, err := seal.Load(dir)
	if !errors.Is(err, fs.ErrNotExist) {
		return key, err
	}
	page, err := st.List(context.Background(), resource.KindSecret, store.ListOptions{Limit: 1})
	if err != nil {
		return nil, err
	}
	if len(page.Items) > 0 {
		return nil, fmt.Errorf("%s is missing from %s, and the store has Secrets that only it opens: take it from a backup", seal.FileName, dir)
	}
	return seal.Make(dir)
}
