package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"
	"go.etcd.io/bbolt"

	"github.com/edgebus/edgebus/broker/client"
	"github.com/edgebus/edgebus/configs"
	"github.com/edgebus/edgebus/edge"
	"github.com/edgebus/edgebus/edge/store"
	"github.com/edgebus/edgebus/topics"
	"github.com/edgebus/edgebus/topics/link"
)

// durableUpdates measures a mapper that publishes reported values with QoS 1 and
// waits for their acknowledgements, each of which follows a commit. Beside it, the
// same number of values in one transaction straight into bbolt, and appended to a
// file with one fsync: what the disk allows at all.
func durableUpdates(b bench) error {
	fmt.Fprintf(b.w, "A client publishes reported values to the core's broker over TCP, QoS 1, and every PUBACK follows a commit.\n"+
		"*bbolt* writes the same values and their index entries in transactions of as many values as are in flight;\n"+
		"*append+fsync* appends them to a file with one fsync for as many.\n\n"+
		"| keys | in flight | core, updates/s | bbolt, values/s | append+fsync, values/s | bbolt ÷ core |\n|---|---|---|---|---|---|\n")
	for _, devices := range []int{100} {
		for _, inflight := range []int{1, 32, 256} {
			if err := durableCase(b, devices, 10, inflight); err != nil {
				return err
			}
		}
	}
	return nil
}

func durableCase(b bench, devices, properties, inflight int) error {
	keys := reportedKeys(devices, properties)
	var core, raw, file []float64
	for range b.rounds {
		for _, m := range []struct {
			into *[]float64
			run  func() (float64, error)
		}{
			{&core, func() (float64, error) { return coreUpdates(b.d, devices, properties, keys, inflight) }},
			{&raw, func() (float64, error) { return bboltUpdates(b.d, keys, inflight) }},
			{&file, func() (float64, error) { return appendUpdates(b.d, keys, inflight) }},
		} {
			v, err := m.run()
			if err != nil {
				return err
			}
			*m.into = append(*m.into, v)
		}
	}
	c, r, f := median(core), median(raw), median(file)
	fmt.Fprintf(b.w, "| %d | %d | %.0f | %.0f | %.0f | %.2f |\n", len(keys), inflight, c, r, f, r/c)
	return nil
}

func median(list []float64) float64 {
	slices.Sort(list)
	return list[len(list)/2]
}

func reportedKeys(devices, properties int) (keys []string) {
	for d := range devices {
		for p := range properties {
			keys = append(keys, topics.DeviceKey(fmt.Sprintf("d%d", d), topics.KindReported, fmt.Sprintf("p%d", p)))
		}
	}
	return keys
}

// coreUpdates runs a core by itself and publishes to it as fast as it acknowledges.
func coreUpdates(d time.Duration, devices, properties int, keys []string, inflight int) (float64, error) {
	dir, err := os.MkdirTemp("", "edgebus-bench-")
	if err != nil {
		return 0, err
	}
	defer os.RemoveAll(dir)
	if err := seed(dir, devices, properties); err != nil {
		return 0, err
	}
	n, err := startCore(dir, "")
	if err != nil {
		return 0, err
	}
	defer n.stop() //nolint:errcheck // measured already
	c, err := connect(n.mqtt, "bench")
	if err != nil {
		return 0, err
	}
	defer c.stop()
	return pump(d, inflight, func(i int, done func(error)) {
		c.PublishAsync(client.Message{
			Topic: topics.TopicOf("n1", keys[i%len(keys)]), Payload: fmt.Appendf(nil, "%d", i), QoS: 1,
		}, done)
	})
}

// pump keeps as many operations in flight and returns how many end in a second.
func pump(d time.Duration, inflight int, start func(i int, done func(error))) (float64, error) {
	slots := make(chan struct{}, inflight)
	var failed atomic.Pointer[error]
	begin := time.Now()
	n := 0
	for time.Since(begin) < d {
		slots <- struct{}{}
		start(n, func(err error) {
			if err != nil {
				failed.Store(&err)
			}
			<-slots
		})
		n++
	}
	for range inflight {
		slots <- struct{}{}
	}
	if err := failed.Load(); err != nil {
		return 0, *err
	}
	return float64(n) / time.Since(begin).Seconds(), nil
}

func bboltUpdates(d time.Duration, keys []string, group int) (float64, error) {
	dir, err := os.MkdirTemp("", "edgebus-bench-")
	if err != nil {
		return 0, err
	}
	defer os.RemoveAll(dir)
	db, err := bbolt.Open(filepath.Join(dir, "raw.db"), 0o600, &bbolt.Options{FreelistType: bbolt.FreelistMapType, NoFreelistSync: true})
	if err != nil {
		return 0, err
	}
	defer db.Close()
	begin, n := time.Now(), 0
	for time.Since(begin) < d {
		err := db.Update(func(tx *bbolt.Tx) error {
			values, err := tx.CreateBucketIfNotExists([]byte("values"))
			if err != nil {
				return err
			}
			for range group {
				e := link.Entry{Seq: uint64(n), Ver: uint64(n), TS: begin.UnixMilli(), Origin: "bench", Value: fmt.Appendf(nil, "%d", n)}
				if err := values.Put([]byte(keys[n%len(keys)]), link.AppendEntry(nil, e)); err != nil {
					return err
				}
				n++
			}
			return nil
		})
		if err != nil {
			return 0, err
		}
	}
	return float64(n) / time.Since(begin).Seconds(), nil
}

func appendUpdates(d time.Duration, keys []string, group int) (float64, error) {
	f, err := os.CreateTemp("", "edgebus-bench-")
	if err != nil {
		return 0, err
	}
	defer os.Remove(f.Name())
	defer f.Close()
	begin, n := time.Now(), 0
	var buf []byte
	for time.Since(begin) < d {
		buf = buf[:0]
		for range group {
			e := link.Entry{Seq: uint64(n), Ver: uint64(n), TS: begin.UnixMilli(), Origin: "bench", Value: fmt.Appendf(nil, "%d", n)}
			buf = append(buf, keys[n%len(keys)]...)
			buf = link.AppendEntry(buf, e)
			n++
		}
		if _, err := f.Write(buf); err != nil {
			return 0, err
		}
		if err := f.Sync(); err != nil {
			return 0, err
		}
	}
	return float64(n) / time.Since(begin).Seconds(), nil
}

// seed gives a core, before it starts, the devices that a hub would have given it.
func seed(dir string, devices, properties int) error {
	st, err := store.Open(dir, func() uint64 { return 1 })
	if err != nil {
		return err
	}
	defer st.Close()
	snap, err := st.Load()
	if err != nil {
		return err
	}
	hub := link.NewOwner(link.Down, func() uint64 { return 2 })
	for d := range devices {
		e := link.Entry{Key: fmt.Sprintf("devices/d%d", d), Value: bundle(d, properties), Ver: 1}
		if _, _, err := hub.Put(e); err != nil {
			return err
		}
	}
	hub.Connect(1)
	for !hub.InStep() {
		for _, m := range hub.Messages() {
			snap.Down.Step(m)
		}
		for _, m := range snap.Down.Messages() {
			if err := hub.Step(m); err != nil {
				return err
			}
		}
	}
	return st.Commit(store.Batch{Down: snap.Down.TakeJournal()})
}

// running is a program that runs in this process.
type running struct {
	mqtt, http net.Addr
	stop       func() error
}

func startCore(dir, hub string) (*running, error) {
	cfg, err := configs.Load[configs.Core]("edgecore", "", nil)
	if err != nil {
		return nil, err
	}
	cfg.Node.Name, cfg.Data.Dir, cfg.Link.Server, cfg.Link.User = "n1", dir, hub, "node/n1"
	cfg.MQTT.Listen, cfg.HTTP.Listen = "127.0.0.1:0", "127.0.0.1:0"
	ctx, cancel := context.WithCancel(context.Background())
	started, ended := make(chan edge.Addresses, 1), make(chan error, 1)
	go func() {
		ended <- edge.Run(ctx, edge.Options{Config: cfg, Log: zerolog.Nop(), Started: func(a edge.Addresses) { started <- a }})
	}()
	select {
	case a := <-started:
		return &running{mqtt: a.MQTT[0], http: a.HTTP[0], stop: func() error { cancel(); return <-ended }}, nil
	case err := <-ended:
		cancel()
		return nil, err
	}
}

type connection struct {
	*client.Client
	stop func()
}

// connect returns once the broker has taken the client in.
func connect(addr net.Addr, id string, opts ...func(*client.Options)) (*connection, error) {
	up := make(chan struct{}, 1)
	o := client.Options{
		Servers: []string{"mqtt://" + addr.String()}, ClientID: id, CleanStart: true, Log: zerolog.Nop(),
		OnConnect: func(context.Context, bool) error { up <- struct{}{}; return nil },
	}
	for _, f := range opts {
		f(&o)
	}
	c, err := client.New(o)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- c.Run(ctx) }()
	select {
	case <-up:
		return &connection{c, func() { cancel(); <-ended }}, nil
	case err := <-ended:
		cancel()
		return nil, err
	}
}
