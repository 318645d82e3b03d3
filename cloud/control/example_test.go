// SPDX-License-Identifier: Apache-2.0

package control_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"

	"github.com/edgebus/edgebus/cloud/control"
	"github.com/edgebus/edgebus/cloud/store"
	"github.com/edgebus/edgebus/cloud/store/disk"
)

// A controller, whole: for each Room it keeps an object of the kind Lamp. It is called with the Room's key when the Room
// or its Lamp has changed, reads what is, and makes what is missing; what is right already is left alone.
func Example() {
	dir, err := os.MkdirTemp("", "controller-")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(dir)
	objects, err := disk.Open(disk.Options{Path: filepath.Join(dir, "log")})
	if err != nil {
		panic(err)
	}
	defer objects.Close()

	made := make(chan store.Key, 1)
	lamps := control.Controller{
		Name: "lamps",
		Watches: []control.Watch{
			{Kind: "Room"},
			{Kind: "Lamp", Keys: func(o store.Object) []store.Key {
				return []store.Key{{Kind: "Room", Namespace: o.Namespace, Name: o.Name}}
			}},
		},
		Reconcile: func(ctx context.Context, room store.Key) (again time.Duration, err error) {
			lamp := store.Key{Kind: "Lamp", Namespace: room.Namespace, Name: room.Name}
			if _, err := objects.Get(ctx, room); err != nil {
				return 0, nil // the Room is gone
			}
			if _, err := objects.Get(ctx, lamp); err == nil {
				return 0, nil // the world is as the Room says
			}
			if _, err := objects.Create(ctx, store.Object{Key: lamp, Data: []byte(`{}`)}); err != nil {
				return 0, err // tried again with back-off
			}
			made <- lamp
			return 0, nil
		},
	}

	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	run := control.New(control.Options{Reader: objects, Watcher: objects, Metrics: prometheus.NewRegistry(), Log: zerolog.Nop()})
	go func() { ended <- run.Run(ctx, lamps) }()

	if _, err := objects.Create(ctx, store.Object{Key: store.Key{Kind: "Room", Namespace: "default", Name: "hall"}, Data: []byte(`{}`)}); err != nil {
		panic(err)
	}
	fmt.Println(<-made)
	stop()
	fmt.Println("ended:", <-ended)
	// Output:
	// Lamp default/hall
	// ended: <nil>
}
