// Package forward brings what waits in the outlet of the node's broker to the hub:
// telemetry, events, and users' own topics that a bridge rule names. It runs for one
// connection at a time, once the hub has caught up with the node's state there.
//
// A message stays in the outlet until the hub has acknowledged it, and is sent again
// after anything else, but for a refusal that time doesn't mend: then it is dropped,
// counted and logged. Many are on their way at a time; with one that the hub can't store
// now it refuses all behind it, so that none overtakes it. It never keeps a message itself, and never waits for the hub
// with anything locked.
package forward

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"github.com/edgebus/edgebus/broker"
	"github.com/edgebus/edgebus/broker/client"
)

// Options are what a Forwarder needs.
type Options struct {
	// Open opens the outlet of the node's broker.
	Open func(window int) *broker.Outlet
	// Publish hands a message over and never blocks; done is told its end.
	Publish func(m client.Message, done func(error))
	// Topic is what a topic of the node's broker is called on the hub's.
	Topic  func(string) string
	Budget *Budget // nil: the link costs nothing
	Log    zerolog.Logger

	Window      int           // messages on their way; 128
	WindowBytes int           // and their bytes; 256 KiB: state waits no longer than for these
	Pause       time.Duration // before what the hub refused is sent again; it doubles up to PauseMost
	PauseMost   time.Duration
}

// Forwarder sends over one connection.
type Forwarder struct {
	o   Options
	log zerolog.Logger // for what a hub can cause any number of

	begins bool // the next stored message is the first since it was begun, or begun again

	mu      sync.Mutex
	most    int // that may be on their way: the window, or 1 until the hub takes something again
	sent    int // on their way
	bytes   int
	refused error         // the hub's refusal that time may mend
	settled chan struct{} // has a value when one of the above has changed
}

// New makes a Forwarder for one connection.
func New(o Options) *Forwarder {
	orDefault(&o.Window, 128)
	orDefault(&o.WindowBytes, 256<<10)
	orDefault(&o.Pause, time.Second)
	orDefault(&o.PauseMost, time.Minute)
	return &Forwarder{
		o: o, log: o.Log.Sample(&zerolog.BurstSampler{Burst: 10, Period: 10 * time.Second}),
		settled: make(chan struct{}, 1), most: o.Window,
	}
}

func orDefault[T comparable](v *T, d T) {
	var zero T
	if *v == zero {
		*v = d
	}
}

// Run forwards until ctx ends, which it has to with the connection.
func (f *Forwarder) Run(ctx context.Context) {
	for pause := f.o.Pause; ; pause = min(2*pause, f.o.PauseMost) {
		taken, err := f.run(ctx)
		if err == nil {
			return
		}
		if taken {
			pause = f.o.Pause
		}
		f.log.Warn().Err(err).Stringer("retry_in", pause.Round(time.Millisecond)).Msg("the hub can't take streams now: they wait")
		if !sleep(ctx, pause) {
			return
		}
	}
}

// run forwards until ctx ends, or the hub refuses something that it may take later:
// then what is on its way is waited for, and the rest begins again from there, in order.
func (f *Forwarder) run(ctx context.Context) (taken bool, refused error) {
	out := f.o.Open(f.o.Window)
	f.begins = true
	defer out.Shut()
	for {
		for f.free() && f.afford(ctx) {
			p, ok := out.Next()
			if !ok {
				break
			}
			f.send(out, p)
		}
		if over, taken, err := f.over(); over {
			return taken, err
		}
		select {
		case <-ctx.Done():
			return false, nil
		case <-out.Ready():
		case <-f.settled:
		}
	}
}

// free says whether the window has room.
func (f *Forwarder) free() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.refused == nil && f.sent < f.most && f.bytes < f.o.WindowBytes
}

// over says that there was a refusal, and that nothing is on its way any more; and
// whether the hub took anything since the one before.
func (f *Forwarder) over() (over, taken bool, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.refused == nil || f.sent > 0 {
		return false, false, nil
	}
	err, taken = f.refused, f.most > 1
	f.refused, f.most = nil, 1
	return true, taken, err
}

// afford waits for the budget.
func (f *Forwarder) afford(ctx context.Context) bool {
	for ctx.Err() == nil {
		wait := f.o.Budget.wait()
		if wait <= 0 {
			return true
		}
		f.o.Budget.held(wait)
		if !sleep(ctx, wait) {
			return false
		}
	}
	return false
}

func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

func (f *Forwarder) send(out *broker.Outlet, p broker.Parcel) {
	m := message(p, f.o.Topic(p.Topic))
	if f.begins && p.ID > 0 {
		m.User = append(m.User, client.UserProperty(broker.BeginsLane))
		f.begins = false
	}
	n := Size(m)
	f.o.Budget.stream(n)
	f.mu.Lock()
	f.sent++
	f.bytes += n
	f.mu.Unlock()
	f.o.Publish(m, func(err error) { f.settle(out, p, n, err) })
}

// settle is the end of a publish. It doesn't block.
func (f *Forwarder) settle(out *broker.Outlet, p broker.Parcel, n int, err error) {
	again := false
	switch {
	case p.ID == 0: // QoS 0: nobody asked for more
	case err == nil:
		out.Done(p.ID)
	case gone(err): // the outlet gives it again, to the next connection
	case passing(err):
		again = true
	default:
		f.log.Error().Err(err).Str("topic", p.Topic).Int("bytes", len(p.Payload)).Msg("the hub will never take this: it is dropped")
		out.Drop(p.ID)
	}
	f.mu.Lock()
	f.sent--
	f.bytes -= n
	switch {
	case err == nil && p.ID > 0: // of QoS 0 nobody says whether it was taken
		f.most = f.o.Window
	case again && f.refused == nil:
		f.refused = err
	}
	f.mu.Unlock()
	select {
	case f.settled <- struct{}{}:
	default:
	}
}

// gone says that nobody knows what became of a publish.
func gone(err error) bool {
	return errors.Is(err, client.ErrConnectionLost) || errors.Is(err, client.ErrNotConnected) || errors.Is(err, client.ErrClosed)
}

// permanent are the reasons that don't go away by themselves: not authorised, topic name
// invalid, packet too large, no room among what is retained, payload format invalid, retain
// or QoS not supported.
var permanent = map[byte]bool{0x87: true, 0x90: true, 0x95: true, 0x97: true, 0x99: true, 0x9A: true, 0x9B: true}

// passing says that the same publish may be taken later.
func passing(err error) bool {
	if r := (*client.Refused)(nil); errors.As(err, &r) {
		return !permanent[r.Code]
	}
	return errors.Is(err, client.ErrBusy)
}
