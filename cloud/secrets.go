package cloud

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"strings"

	"github.com/edgebus/edgebus/cloud/seal"
	"github.com/edgebus/edgebus/cloud/store"
	"github.com/edgebus/edgebus/topics/resource"
)

// sealer reads the key of Secrets, or makes one if there are no Secrets yet. A key that doesn't open all
// of them is refused: with it new Secrets would be written that the right one doesn't open.
func sealer(dir string, st store.Reader) (*seal.Key, error) {
	key, _, err := unseal(dir, st)
	switch {
	case err != nil:
		return nil, fmt.Errorf("%s: %w", dir, err)
	case key == nil:
		return seal.Make(dir)
	}
	return key, nil
}

// unseal opens every Secret of the store with the key in the directory, and counts them. Without Secrets
// there may be no key.
func unseal(dir string, st store.Reader) (key *seal.Key, count int, err error) {
	page, err := st.List(context.Background(), resource.KindSecret, store.ListOptions{})
	if err != nil {
		return nil, 0, err
	}
	count = len(page.Items)
	key, err = seal.Load(dir)
	switch {
	case errors.Is(err, fs.ErrNotExist) && count == 0:
		return nil, 0, nil
	case errors.Is(err, fs.ErrNotExist):
		return nil, count, fmt.Errorf("%s is missing, and %s: take it from a backup", seal.FileName, unopened(page.Items, count))
	case err != nil:
		return nil, count, err
	}
	var closed []store.Object
	for _, o := range page.Items {
		if !opens(key, o) {
			closed = append(closed, o)
		}
	}
	if len(closed) > 0 {
		return nil, count, fmt.Errorf("%s with %s: it is another hub's, or they are damaged: take the key, or all data, from a backup",
			unopened(closed, count), seal.FileName)
	}
	return key, count, nil
}

func opens(key *seal.Key, o store.Object) bool {
	var record struct {
		Sealed []byte `json:"sealed"`
	}
	if err := json.Unmarshal(o.Data, &record); err != nil {
		return false
	}
	_, err := key.Open(record.Sealed, o.Key.String())
	return err == nil
}

// unopened names what can't be opened, but not all of very many.
func unopened(objects []store.Object, of int) string {
	const most = 5
	var names []string
	for _, o := range objects[:min(len(objects), most)] {
		names = append(names, o.Key.String())
	}
	text := strings.Join(names, ", ")
	if more := len(objects) - most; more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return fmt.Sprintf("%s (%d of %d) can't be opened", text, len(objects), of)
}
