// SPDX-License-Identifier: Apache-2.0

package broker

import (
	"bufio"
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/mochi-mqtt/server/v2/packets"
	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/broker/journal"
	"github.com/edgebus/edgebus/broker/session"
)

// unackedTestPublish is a publish that its publisher is not done with.
type unackedTestPublish struct {
	id       uint16
	qos      byte
	payload  string
	received bool // PUBREC came
}

// testPublisher does what the standard wants of one, over any number of crashes.
type testPublisher struct {
	*testClient
	name   string
	next   int
	lastID uint16
	open   []*unackedTestPublish
	acked  []string
}

func (p *testPublisher) publish(rnd *rand.Rand) {
	p.lastID++
	x := &unackedTestPublish{id: p.lastID, qos: byte(rnd.IntN(2) + 1), payload: fmt.Sprintf("%s %d", p.name, p.next)}
	p.next++
	p.open = append(p.open, x)
	p.testClient.publish("t/"+p.name, x.payload, x.qos, x.id)
}

// resume sends again what it has no answer to.
func (p *testPublisher) resume() {
	for _, x := range p.open {
		if x.received {
			p.ack(packets.Pubrel, x.id)
		} else {
			p.testClient.publish("t/"+p.name, x.payload, x.qos, x.id, markDup)
		}
	}
}

// settle reads what has been answered by now.
func (p *testPublisher) settle(t *testing.T) {
	p.send(packets.Packet{FixedHeader: packets.FixedHeader{Type: packets.Pingreq}})
	for {
		pk, err := p.read(testTimeout)
		require.NoError(t, err)
		if pk.FixedHeader.Type == packets.Pingresp {
			return
		}
		if pk.FixedHeader.Type != packets.Pubcomp || pk.ReasonCode != 0x92 { // the id is free already
			require.Less(t, pk.ReasonCode, byte(0x80))
		}
		for i, x := range p.open {
			if x.id != pk.PacketID {
				continue
			}
			if pk.FixedHeader.Type != packets.Pubcomp {
				if !x.received {
					p.acked = append(p.acked, x.payload)
				}
				x.received = true
			}
			if pk.FixedHeader.Type == packets.Pubrec {
				p.ack(packets.Pubrel, x.id)
			} else {
				p.open = append(p.open[:i], p.open[i+1:]...)
			}
			break
		}
	}
}

// testSubscriber takes a QoS 2 message once for each packet id, as the standard wants.
type testSubscriber struct {
	*testClient
	held map[uint16]bool
	got  map[string]int
	qos  map[string]byte
	list []string // first deliveries
}

func (s *testSubscriber) settle(t *testing.T, rnd *rand.Rand, loses bool) (n int) {
	s.send(packets.Packet{FixedHeader: packets.FixedHeader{Type: packets.Pingreq}})
	for {
		pk, err := s.read(testTimeout)
		require.NoError(t, err)
		answers := !loses || rnd.IntN(4) > 0
		switch pk.FixedHeader.Type {
		case packets.Pingresp:
			return n
		case packets.Publish:
			payload := string(pk.Payload)
			if pk.FixedHeader.Qos == 1 || !s.held[pk.PacketID] {
				if s.got[payload]++; s.got[payload] == 1 {
					s.list = append(s.list, payload)
				}
				s.qos[payload] = pk.FixedHeader.Qos
			}
			if pk.FixedHeader.Qos == 2 {
				s.held[pk.PacketID] = true
				if answers {
					s.ack(packets.Pubrec, pk.PacketID)
				}
			} else if answers {
				s.ack(packets.Puback, pk.PacketID)
			}
		case packets.Pubrel:
			delete(s.held, pk.PacketID)
			if answers {
				s.ack(packets.Pubcomp, pk.PacketID)
			}
		}
		n++
	}
}

// Publishers and subscribers that keep to the standard, and a broker that crashes at
// any moment: what was acknowledged is delivered, at QoS 2 once, in order.
func TestCrashesAtRandomMoments(t *testing.T) {
	seeds := 12
	if testing.Short() {
		seeds = 3
	}
	for seed := range uint64(seeds) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) { crashAtRandom(t, rand.New(rand.NewPCG(seed, 7))) })
	}
}

func crashAtRandom(t *testing.T, rnd *rand.Rand) {
	small := func(o *Options) { o.Limits.Inflight = 8 }
	dir := t.TempDir()
	b, _ := startKept(t, dir, small)
	pubs := []*testPublisher{{name: "one"}, {name: "two"}}
	subs := []*testSubscriber{{}, {}}
	attach := func() {
		for _, p := range pubs {
			p.testClient = openClient(t, b, p.name, persistentSession)
			p.resume()
		}
		for i, s := range subs {
			s.testClient = openClient(t, b, "sub"+strconv.Itoa(i), persistentSession)
		}
	}
	attach()
	for _, s := range subs {
		s.held, s.got, s.qos = make(map[uint16]bool), make(map[string]int), make(map[string]byte)
		s.sub("t/+", 2)
	}
	for range 8 {
		for range rnd.IntN(60) {
			switch rnd.IntN(6) {
			case 0, 1, 2:
				pubs[rnd.IntN(2)].publish(rnd)
			case 3:
				pubs[rnd.IntN(2)].settle(t)
			case 4:
				subs[rnd.IntN(2)].settle(t, rnd, true)
			case 5: // a lost connection
				i := rnd.IntN(2)
				subs[i].leave(b, "sub"+strconv.Itoa(i))
				subs[i].testClient = openClient(t, b, "sub"+strconv.Itoa(i), persistentSession)
			}
		}
		old := b
		b, dir = restartCrashed(t, dir, small)
		for i := range 2 {
			_, _ = pubs[i].conn.Close(), subs[i].conn.Close() // or the old broker would wait for them to go
		}
		require.NoError(t, old.Close(t.Context()))
		attach()
	}
	owed := func() bool { return b.Stats().Queued > 0 || len(pubs[0].open)+len(pubs[1].open) > 0 }
	for begun := time.Now(); owed(); require.Less(t, time.Since(begun), testTimeout) {
		for _, p := range pubs {
			p.settle(t)
		}
		for _, s := range subs {
			s.settle(t, rnd, false)
		}
	}
	for _, s := range subs {
		s.verify(t, pubs)
	}
}

func (s *testSubscriber) verify(t *testing.T, pubs []*testPublisher) {
	for _, p := range pubs {
		for _, payload := range p.acked {
			require.Positive(t, s.got[payload], payload)
			if s.qos[payload] == 2 {
				require.Equal(t, 1, s.got[payload], payload)
			}
		}
		last := map[byte]int{1: -1, 2: -1} // order is for messages of one QoS
		for _, payload := range s.list {
			number, mine := strings.CutPrefix(payload, p.name+" ")
			if n, err := strconv.Atoi(number); mine && err == nil {
				require.Greater(t, n, last[s.qos[payload]], payload)
				last[s.qos[payload]] = n
			}
		}
	}
}

func FuzzRecords(f *testing.F) {
	m := &session.Message{Topic: "a/b", Payload: []byte("x"), QoS: 2, Props: Properties{
		ContentType: "t", Correlation: []byte{1}, PayloadFormat: new(byte), Expiry: 5, User: []UserProperty{{Key: "k", Value: "v"}},
	}}
	e := session.Encoder{kindRetained}
	e.Text("user")
	e.Message(m)
	f.Add([]byte(e))
	c := &client{number: 3, record: 4}
	c.ident.Store(&Identity{ClientID: "c", User: "u", Nodes: []string{"n*"}, Version: 5})
	f.Add(c.recordWith(&will{message: Message{Topic: "w", QoS: 1}, delay: 5}).Value)
	s := newSubscription(c, "$share/g/a/+")
	f.Add(s.change().Value)
	for kind := range byte(8) {
		f.Add([]byte{kind, 3, 1, 2, 0, 0, 1})
	}
	f.Fuzz(func(t *testing.T, value []byte) {
		b, err := New(Options{Journal: fixedJournal{1: value, 2: c.recordWith(nil).Value}})
		if err != nil {
			return
		}
		b.clients.resume()
		require.LessOrEqual(t, b.Stats().Sessions, 2)
		require.NoError(t, b.Close(t.Context()))
	})
}

// fixedJournal is a journal that forgets.
type fixedJournal map[uint64][]byte

func (f fixedJournal) Load(each func(uint64, []byte) error) error {
	for id, value := range f {
		if err := each(id, value); err != nil {
			return err
		}
	}
	return nil
}

func (f fixedJournal) Read([]uint64, func(int, []byte) error) error { return nil }

func (f fixedJournal) Commit(_ []journal.RecordChange, done func(error)) {
	if done != nil {
		go done(nil)
	}
}

// killEnv makes the test binary the broker that gets killed, placeEnv that of one of the places.
const (
	killEnv  = "BROKER_TEST_VICTIM"
	placeEnv = "BROKER_TEST_PLACE"
)

// killedSetups are the places in which a broker is killed.
var killedSetups = []brokerSetup{{name: "hub"}, {name: "hub-websocket", webSocket: true}, {name: "edge", node: "n1"}, {name: "edge-websocket", node: "n1", webSocket: true}}

func TestMain(m *testing.M) {
	if dir := os.Getenv(killEnv); dir != "" {
		if err := runVictim(dir); err != nil {
			fmt.Println("error", err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// runVictim is a broker that says where it listens.
func runVictim(dir string) error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	j, err := journal.Open(journal.Options{Dir: dir, Segment: 64 << 10})
	if err != nil {
		return err
	}
	i := slices.IndexFunc(killedSetups, func(p brokerSetup) bool { return p.name == os.Getenv(placeEnv) })
	o := killedSetups[i].options(nil)
	o.Journal = j
	b, err := New(o)
	if err != nil {
		return err
	}
	fmt.Println("listening", b.Addrs()[0])
	if err := b.Serve(ctx); err != nil {
		return err
	}
	return j.Close()
}

// brokerProcess is a broker in a process of its own.
type brokerProcess struct {
	t    *testing.T
	cmd  *exec.Cmd
	addr string
	in   brokerSetup
}

func launchProcess(t *testing.T, in brokerSetup, dir string) *brokerProcess {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), killEnv+"="+dir, placeEnv+"="+in.name)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	line, err := bufio.NewReader(out).ReadString('\n')
	require.NoError(t, err)
	addr, ok := strings.CutPrefix(strings.TrimSpace(line), "listening ")
	require.True(t, ok, line)
	return &brokerProcess{t, cmd, addr, in}
}

func (p *brokerProcess) end(how os.Signal) {
	p.t.Helper()
	require.NoError(p.t, p.cmd.Process.Signal(how))
	_ = p.cmd.Wait()
}

func (p *brokerProcess) open(id string, opts ...connectOption) *testClient {
	p.t.Helper()
	var c *testClient
	if p.in.webSocket {
		c = dialWS(p.t, "ws://"+p.addr+"/mqtt", nil)
	} else {
		conn, err := net.Dial("tcp", p.addr)
		require.NoError(p.t, err)
		c = wrapConn(p.t, conn)
	}
	require.Equal(p.t, byte(0), c.connect(id, opts...))
	return c
}

func TestKilledAndTerminated(t *testing.T) {
	for _, in := range killedSetups {
		for _, how := range []os.Signal{syscall.SIGTERM, syscall.SIGKILL} {
			t.Run(in.name+"/"+how.String(), func(t *testing.T) { checkAcknowledgedIsKept(t, in, how) })
		}
	}
}

func checkAcknowledgedIsKept(t *testing.T, in brokerSetup, how os.Signal) {
	dir := t.TempDir()
	p := launchProcess(t, in, dir)
	sub, two, pub := p.open("sub", persistentSession), p.open("two", persistentSession, version311), p.open("pub", persistentSession)
	sub.sub("a/#", 1)
	two.sub("a/#", 2)
	sub.disconnect()
	two.disconnect()
	pub.burst("a/b", 0, 50)
	pub.publish1("r", "retained", markRetain)
	pub.publish("a/c", "twice?", 2, 40)
	pub.expect(packets.Pubrec)
	p.end(how)

	p = launchProcess(t, in, dir)
	pub = p.open("pub", persistentSession)
	require.True(t, pub.connack.SessionPresent)
	pub.publish("a/c", "twice?", 2, 40, markDup)
	pub.expect(packets.Pubrec)
	for _, c := range []*testClient{p.open("sub", persistentSession), p.open("two", persistentSession, version311)} {
		require.True(t, c.connack.SessionPresent)
		require.Equal(t, append(numberedPayloads(0, 50), "twice?"), c.collect(51))
	}
	reader := p.open("reader")
	reader.sub("r", 0)
	require.Equal(t, "retained", string(reader.expect(packets.Publish).Payload))
}

// Killed while many publish: what was acknowledged arrives, in each publisher's order.
func TestKilledUnderLoad(t *testing.T) {
	dir := t.TempDir()
	rnd := rand.New(rand.NewPCG(uint64(time.Now().UnixNano()), 0))
	const publishers = 4
	acked := make([]int, publishers) // how many of its messages; they are acknowledged in order
	p := launchProcess(t, killedSetups[0], dir)
	sub := p.open("sub", persistentSession)
	sub.sub("load/+", 1)
	sub.disconnect()
	for range 4 {
		var all, begun sync.WaitGroup
		for i := range publishers {
			c := p.open("pub"+strconv.Itoa(i), persistentSession)
			begun.Add(1)
			all.Go(func() { acked[i] = c.publishUntilGone("load/"+strconv.Itoa(i), acked[i], begun.Done) })
		}
		begun.Wait()
		time.Sleep(time.Duration(rnd.IntN(100)) * time.Millisecond) // at any moment: that is the test
		p.end(syscall.SIGKILL)
		all.Wait()
		p = launchProcess(t, killedSetups[0], dir)
	}
	require.Zero(t, p.open("last").publish1("load/last", "").ReasonCode)
	sub = p.open("sub", persistentSession)
	seen := make([]int, publishers)
	for pk := sub.expect(packets.Publish); pk.TopicName != "load/last"; pk = sub.expect(packets.Publish) {
		i, _ := strconv.Atoi(strings.TrimPrefix(pk.TopicName, "load/"))
		n, _ := strconv.Atoi(string(pk.Payload))
		require.LessOrEqual(t, n, seen[i], "a gap in %s", pk.TopicName)
		seen[i] = max(seen[i], n+1) // less: published again after a crash
		sub.ack(packets.Puback, pk.PacketID)
	}
	for i := range publishers {
		require.GreaterOrEqual(t, seen[i], acked[i], "publisher %d", i)
	}
	t.Logf("acknowledged %v, delivered %v", acked, seen)
}

// publishUntilGone publishes numbers, 64 at a time in flight, until the connection
// is lost, and returns the number after the last one acknowledged. It tells of the first
// one that is.
func (c *testClient) publishUntilGone(topic string, from int, begun func()) (acked int) {
	first := sync.OnceFunc(begun)
	defer first()
	acked = from
	for next := from; ; {
		for ; next < acked+64; next++ {
			pk := encodePacket(c.t, publishPacket(topic, strconv.Itoa(next), 1, uint16(next%1000)+1), c.version)
			if _, err := c.conn.Write(pk); err != nil {
				break
			}
		}
		pk, err := c.read(testTimeout)
		if err != nil || pk.FixedHeader.Type != packets.Puback || pk.ReasonCode != 0 {
			return acked
		}
		acked++
		first()
	}
}
