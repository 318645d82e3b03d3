// SPDX-License-Identifier: Apache-2.0

//go:build testprogram

package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"time"

	"github.com/rs/zerolog"
	"go.etcd.io/bbolt"

	"github.com/edgebus/edgebus/broker/client"
	"github.com/edgebus/edgebus/edge/store"
	"github.com/edgebus/edgebus/topics"
	"github.com/edgebus/edgebus/topics/link"
)

// measureDurableUpdates measures a mapper that publishes reported values with QoS 1 and
// waits for their acknowledgements, each of which follows a commit. Beside it, the
// same number of values in one transaction straight into bbolt, and appended to a
// file with one fsync: what the disk allows at all.
func measureDurableUpdates(b benchRun) error {
	fmt.Fprintf(b.w, "A client publishes reported values to the core's broker over TCP, QoS 1, and every PUBACK follows a commit.\n"+
		"*bbolt* writes the same values in transactions of as many values as are in flight;\n"+
		"*append+fsync* appends them to a file with one fsync for as many. *CPU* is processor time, of the core and of the\n"+
		"client, for each update: the two share the machine's %d cores.\n\n"+
		"| keys | in flight | core, updates/s | bbolt, values/s | append+fsync, values/s | bbolt ÷ core | append ÷ core | CPU core, µs | CPU client, µs |\n"+
		"|---|---|---|---|---|---|---|---|---|\n", runtime.NumCPU())
	found := make(map[int]durableFigures) // with 256 in flight, by keys
	for _, c := range []struct{ devices, inflight int }{{100, 1}, {100, 32}, {100, 256}, {1000, 256}, {10000, 256}} {
		f, err := durableCase(b, c.devices, 10, c.inflight)
		if err != nil {
			return err
		}
		if c.inflight == 256 {
			found[10*c.devices] = f
		}
	}
	few, some, many := found[1_000], found[10_000], found[100_000]
	within := func(most float64, of func(durableFigures) float64) string {
		return aimText(max(of(few), of(some), of(many)) <= most)
	}
	fmt.Fprintf(b.w, "\nAims with 256 in flight: within 1.5 times bbolt (%s) and 3 times append+fsync (%s) at every size; 40,000/s with 1,000 keys (%s)\n"+
		"and 15,000/s with 100,000 (%s); an update costs with 100,000 keys at most twice what it costs with 10,000 (%s).\n\n"+
		"Beyond a loop that appends, the core does for each update: it reads, checks and decodes a packet, checks\n"+
		"the rights, finds device and property, validates the value, hashes the entry twice for the digest, and answers\n"+
		"in order. The next group waits for the disk and the disk for the next group, because PUBACK follows the\n"+
		"commit: a client with 256 in flight leaves the disk idle while its next 256 are read, and\n"+
		"half of the processors while they are synced. [ADR 0011](adr/0011-the-edges-store-is-a-log-before-bbolt.md) has the profile, and what\n"+
		"other designs would gain.\n",
		within(1.5, func(f durableFigures) float64 { return f.bbolt / f.rate }), within(3, func(f durableFigures) float64 { return f.file / f.rate }),
		aimText(few.rate >= 40_000), aimText(many.rate >= 15_000), aimText(many.core <= 2*some.core && many.rate >= some.rate/2))
	return nil
}

// durableFigures is what a case found, medians: of a second, and microseconds of processor time for each update.
type durableFigures struct{ rate, bbolt, file, core, client float64 }

func durableCase(b benchRun, devices, properties, inflight int) (d durableFigures, err error) {
	keys := reportedKeys(devices, properties)
	var rate, raw, file, cpuCore, cpuClient []float64
	for range b.rounds {
		u, err := coreUpdates(b, devices, properties, keys, inflight)
		if err != nil {
			return d, err
		}
		rate, cpuCore, cpuClient = append(rate, u.rate), append(cpuCore, u.core), append(cpuClient, u.client)
		for _, m := range []struct {
			into *[]float64
			run  func(time.Duration, []string, int) (float64, error)
		}{{&raw, bboltUpdates}, {&file, appendUpdates}} {
			v, err := m.run(b.d, keys, inflight)
			if err != nil {
				return d, err
			}
			*m.into = append(*m.into, v)
		}
	}
	d = durableFigures{median(rate), median(raw), median(file), median(cpuCore), median(cpuClient)}
	fmt.Fprintf(b.w, "| %d | %d | %.0f | %.0f | %.0f | %.2f | %.2f | %.1f | %.1f |\n",
		len(keys), inflight, d.rate, d.bbolt, d.file, d.bbolt/d.rate, d.file/d.rate, d.core, d.client)
	return d, nil
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
	// In no order that a tree of pages could make use of, the same each time.
	rand.New(rand.NewPCG(1, 2)).Shuffle(len(keys), func(i, j int) { keys[i], keys[j] = keys[j], keys[i] })
	return keys
}

// updateFigures is what one run found: updates a second, and microseconds of processor time for each.
type updateFigures struct{ rate, core, client float64 }

// coreUpdates runs a core by itself and publishes to it as fast as it acknowledges.
func coreUpdates(b benchRun, devices, properties int, keys []string, inflight int) (u updateFigures, err error) {
	core, err := shippedCore(b, devices, properties)
	if err != nil {
		return u, err
	}
	defer core.stop()
	p, err := newPump(core.addr)
	if err != nil {
		return u, err
	}
	defer p.close()
	topic := make([]string, len(keys))
	for i, key := range keys {
		topic[i] = topics.TopicOf("n1", key)
	}
	n := 0
	next := func(int) (string, []byte) {
		n++
		return topic[n%len(topic)], strconv.AppendInt(nil, int64(n), 10)
	}
	if err := writeEveryKey(p, len(keys), next); err != nil {
		return u, err
	}
	return timeUpdates(core, p, b.d, inflight, next)
}

// writeEveryKey writes every key once: what is measured are updates of keys that are there.
func writeEveryKey(p *pump, keys int, next func(int) (string, []byte)) error {
	for done := 0; done < keys; {
		n, err := p.run(time.Second, 512, next)
		if err != nil {
			return err
		}
		done += n
	}
	return nil
}

func timeUpdates(core *benchProcess, p *pump, d time.Duration, inflight int, next func(int) (string, []byte)) (u updateFigures, err error) {
	before, err := cpuOf(core.pid)
	if err != nil {
		return u, err
	}
	own, begin := ownCPU(), time.Now()
	n, err := p.run(d, inflight, next)
	if err != nil {
		return u, err
	}
	took, client := time.Since(begin), ownCPU()-own
	after, err := cpuOf(core.pid)
	each := func(d time.Duration) float64 { return float64(d.Microseconds()) / float64(n) }
	return updateFigures{float64(n) / took.Seconds(), each(after - before), each(client)}, err
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
	n := 0
	put := func(group int) error {
		return db.Update(func(tx *bbolt.Tx) error {
			values, err := tx.CreateBucketIfNotExists([]byte("values"))
			for range group {
				if err == nil {
					err = values.Put([]byte(keys[n%len(keys)]), link.AppendEntry(nil, benchEntry(n)))
				}
				n++
			}
			return err
		})
	}
	for n < len(keys) { // what is measured are updates of keys that are there
		if err := put(min(len(keys), 10_000)); err != nil {
			return 0, err
		}
	}
	begin, before := time.Now(), n
	for time.Since(begin) < d {
		if err := put(group); err != nil {
			return 0, err
		}
	}
	return float64(n-before) / time.Since(begin).Seconds(), nil
}

func benchEntry(n int) link.Entry {
	return link.Entry{Seq: uint64(n), Ver: uint64(n), TS: 1_700_000_000_000, Origin: "bench", Value: strconv.AppendInt(nil, int64(n), 10)}
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
			buf = append(buf, keys[n%len(keys)]...)
			buf = link.AppendEntry(buf, benchEntry(n))
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

// shippedCore starts a core as it is shipped, alone, with devices that a hub gave it before.
func shippedCore(b benchRun, devices, properties int) (*benchProcess, error) {
	dir, err := os.MkdirTemp("", "edgebus-bench-")
	if err != nil {
		return nil, err
	}
	addr, err := freeAddress()
	if err != nil {
		return nil, err
	}
	if err := seedCore(dir, devices, properties); err != nil {
		return nil, err
	}
	return startBroker(dir, addr, "", filepath.Join(b.bin, "edgecore"), "--data-dir", dir, "--mqtt-listen", addr,
		"--http-listen", "127.0.0.1:0", "--node-name", "n1", "--link-server", "", "--limits-node-keys", "1000000")
}

// seedCore gives a core, before it starts, the devices that a hub would have given it.
func seedCore(dir string, devices, properties int) error {
	docs := map[string][]byte{}
	for d := range devices {
		docs[fmt.Sprintf("devices/d%d", d)] = deviceBundle(d, properties)
	}
	return seedDocuments(dir, docs)
}

// seedDocuments writes documents into a core's store, as if its hub had sent them.
func seedDocuments(dir string, docs map[string][]byte) error {
	st, err := store.Open(store.Options{Dir: dir, Rand: func() uint64 { return 1 }})
	if err != nil {
		return err
	}
	defer st.Close()
	snap, err := st.Load()
	if err != nil {
		return err
	}
	hub := link.NewOwner(link.Down, func() uint64 { return 2 })
	for key, doc := range docs {
		if _, _, err := hub.Put(link.Entry{Key: key, Value: doc, Ver: 1}); err != nil {
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
	return st.Commit(store.Batch{Down: snap.Down.TakeChanges()})
}

type clientConnection struct {
	*client.Client
	stop func()
}

// connectClient returns once the broker has taken the client in.
func connectClient(addr, id string, opts ...func(*client.Options)) (*clientConnection, error) {
	up := make(chan struct{}, 1)
	o := client.Options{
		Servers: []string{"mqtt://" + addr}, ClientID: id, CleanStart: true, Log: zerolog.Nop(),
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
		return &clientConnection{c, func() { cancel(); <-ended }}, nil
	case err := <-ended:
		cancel()
		return nil, err
	}
}
