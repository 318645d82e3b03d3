package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/rs/zerolog"

	"github.com/edgebus/edgebus/broker/client"
	"github.com/edgebus/edgebus/topics"
	"github.com/edgebus/edgebus/topics/link"
)

const (
	crowd        = 2000 // nodes
	crowdKeys    = 50   // of each
	crowdChanged = 10   // of each, while the hub is away
	crowdTimeout = 5 * time.Second
)

// reconnectMany has all nodes of a fleet come back to a hub at the same moment.
func reconnectMany(b bench) error {
	if err := raiseFileLimit(); err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "edgebus-bench-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	addr, err := freeAddress()
	if err != nil {
		return err
	}
	run := func() (*process, error) {
		return start(filepath.Join(dir, "none"), addr, "", filepath.Join(b.bin, "cloudhub"), "--data-dir", dir, "--mqtt-listen", addr,
			"--mqtt-websocket-listen", "", "--http-listen", "127.0.0.1:0")
	}
	hub, err := run()
	if err != nil {
		return err
	}
	defer func() { hub.stop() }()
	time.Sleep(settled)
	before, err := anonymous(hub.pid)
	if err != nil {
		return err
	}
	f := startFleet(addr)
	defer f.stop()
	first, err := f.settle()
	if err != nil {
		return err
	}
	var again, memory []float64
	for round := range b.rounds {
		_ = syscall.Kill(hub.pid, syscall.SIGKILL)
		hub.stop()
		f.change(round)
		if hub, err = run(); err != nil {
			return err
		}
		took, err := f.settle()
		if err != nil {
			return err
		}
		time.Sleep(settled)
		after, err := anonymous(hub.pid)
		if err != nil {
			return err
		}
		again, memory = append(again, took.Seconds()), append(memory, (after-before)*1e6/crowd)
	}
	fmt.Fprintf(b.w, "\n%d nodes of %d keys each connect to one hub, which is then killed and started again with %d keys of each changed\n"+
		"meanwhile; the nodes (owners and replicas of the link with a connection each) try again after 0.1 to 1 s, all of them at once.\n\n"+
		"| | |\n|---|---|\n| all in step for the first time, s | %.1f |\n| all in step again after the hub listens, s | %.1f |\n"+
		"| anonymous memory of the hub a node, bytes | %.0f |\n| connections refused or lost; messages malformed, refused or repeated | %d |\n\n"+
		"Aims: all in step; no error: %s; less than 60,000 bytes a node: %s.\n",
		crowd, crowdKeys, crowdChanged, first.Seconds(), median(again), median(memory), f.faults.Load(),
		met(f.faults.Load() == 0), met(median(memory) < 60_000))
	return nil
}

// fleet is a crowd of nodes.
type fleet struct {
	members []*member
	faults  atomic.Int64
	up      atomic.Bool // the hub is meant to be there
	stop    func()
}

// member is a node: the link's two machines, and their connection.
type member struct {
	*client.Client
	fleet *fleet
	name  string

	mu    sync.Mutex
	up    *link.Owner
	down  *link.Replica
	last  time.Time // it said or heard something
	heard bool      // anything of the cloud's map in this connection
}

func startFleet(addr string) *fleet {
	f := &fleet{}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	for i := range crowd {
		m := &member{
			fleet: f, name: fmt.Sprintf("crowd-%04d", i),
			up: link.NewOwner(link.Up, rand.Uint64), down: link.NewReplica(link.Down),
		}
		m.put(crowdKeys, 0)
		if err := m.begin(addr); err != nil {
			f.faults.Add(1)
			continue
		}
		f.members = append(f.members, m)
		running.Go(func() { _ = m.Run(ctx) })
	}
	f.stop = func() { cancel(); running.Wait() }
	return f
}

func (m *member) begin(addr string) (err error) {
	_, down := topics.Sync(m.name)
	m.Client, err = client.New(client.Options{
		Servers: []string{"mqtt://" + addr}, ClientID: "node/" + m.name, User: "node/" + m.name, CleanStart: true, Log: zerolog.Nop(),
		Subscriptions: []client.Subscription{{Filter: down, QoS: 1}},
		OnConnect: func(context.Context, bool) error {
			m.step(func() { m.heard = false; m.up.Connect(rand.Uint64()) })
			return nil
		},
		OnDisconnect: func(error) { m.failed(); m.step(m.up.Disconnect) },
		OnConnectError: func(err error) {
			if refused := (*client.Refused)(nil); errors.As(err, &refused) {
				m.failed()
			}
		},
		OnMessage: func(got client.Message) { m.hear(got.Payload) },
		Backoff:   client.Backoff{Min: 100 * time.Millisecond, Max: time.Second},
	})
	return err
}

// failed notes what must not happen while the hub is there.
func (m *member) failed() {
	if m.fleet.up.Load() {
		m.fleet.faults.Add(1)
	}
}

func (m *member) put(keys, round int) {
	for i := range keys {
		_, _, _ = m.up.Put(link.Entry{ // an own key is a good one
			Key: topics.DeviceKey(fmt.Sprintf("press-%04d", i/10), topics.KindReported, fleetProperties[i%10]),
			TS:  1_790_000_000_000, Origin: "mapper-modbus", Value: fmt.Appendf(nil, "%08.3f", float64(i+round)/7),
		})
	}
}

// step changes the machines and says what follows; what is stored is not what is measured here.
func (m *member) step(f func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	f()
	m.up.TakeJournal()
	m.down.TakeJournal()
	m.last = time.Now()
	up, _ := topics.Sync(m.name)
	for _, msg := range append(m.down.Messages(), m.up.Messages()...) {
		text, err := link.Encode(msg)
		if err != nil {
			m.fleet.faults.Add(1)
			continue
		}
		m.PublishAsync(client.Message{Topic: up, Payload: text, QoS: 1}, func(err error) {
			var refused *client.Refused
			if errors.As(err, &refused) {
				m.fleet.faults.Add(1)
			}
		})
	}
}

func (m *member) hear(payload []byte) {
	msg, err := link.Decode(payload)
	if err != nil {
		m.fleet.faults.Add(1)
		return
	}
	m.step(func() {
		if msg.Map == link.Up {
			if err := m.up.Step(msg); err != nil {
				m.fleet.faults.Add(1)
			}
			return
		}
		m.heard = true
		m.down.Step(msg)
	})
}

// agreed says whether both maps are known to be the same; meanwhile it does what the resend timer does.
func (m *member) agreed() bool {
	m.mu.Lock()
	in, late := m.heard && m.up.InStep(), m.up.Waiting() && time.Since(m.last) > crowdTimeout
	m.mu.Unlock()
	if late {
		m.fleet.faults.Add(1)
		m.step(m.up.Resend)
	}
	return in
}

func (f *fleet) change(round int) {
	for _, m := range f.members {
		m.step(func() { m.put(crowdChanged, round+1) })
	}
}

// settle waits until all nodes agree with the hub.
func (f *fleet) settle() (time.Duration, error) {
	f.up.Store(true)
	defer f.up.Store(false)
	begin := time.Now()
	for left := crowd; left > 0; time.Sleep(5 * time.Millisecond) {
		left = crowd
		for _, m := range f.members {
			if m.agreed() {
				left--
			}
		}
		if time.Since(begin) > 2*time.Minute {
			return 0, fmt.Errorf("%d of %d nodes are not in step after two minutes", left, crowd)
		}
	}
	return time.Since(begin), nil
}
