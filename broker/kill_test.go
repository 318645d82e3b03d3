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
)

// killEnv makes the test binary the broker that gets killed, placeEnv that of one of the places.
const (
	killEnv  = "BROKER_TEST_VICTIM"
	placeEnv = "BROKER_TEST_PLACE"
)

// killed are the places in which a broker is killed.
var killed = []place{{name: "hub"}, {name: "hub-websocket", webSocket: true}, {name: "edge", node: "n1"}, {name: "edge-websocket", node: "n1", webSocket: true}}

func TestMain(m *testing.M) {
	if dir := os.Getenv(killEnv); dir != "" {
		if err := victim(dir); err != nil {
			fmt.Println("error", err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// victim is a broker that says where it listens.
func victim(dir string) error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	j, err := journal.Open(journal.Options{Dir: dir, Segment: 64 << 10})
	if err != nil {
		return err
	}
	i := slices.IndexFunc(killed, func(p place) bool { return p.name == os.Getenv(placeEnv) })
	o := killed[i].options(nil)
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

// process is a broker in a process of its own.
type process struct {
	t    *testing.T
	cmd  *exec.Cmd
	addr string
	in   place
}

func launch(t *testing.T, in place, dir string) *process {
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
	return &process{t, cmd, addr, in}
}

func (p *process) end(how os.Signal) {
	p.t.Helper()
	require.NoError(p.t, p.cmd.Process.Signal(how))
	_ = p.cmd.Wait()
}

func (p *process) open(id string, opts ...connectOption) *tc {
	p.t.Helper()
	var c *tc
	if p.in.webSocket {
		c = dialWS(p.t, "ws://"+p.addr+"/mqtt", nil)
	} else {
		conn, err := net.Dial("tcp", p.addr)
		require.NoError(p.t, err)
		c = wrap(p.t, conn)
	}
	require.Equal(p.t, byte(0), c.connect(id, opts...))
	return c
}

func TestKilledAndTerminated(t *testing.T) {
	for _, in := range killed {
		for _, how := range []os.Signal{syscall.SIGTERM, syscall.SIGKILL} {
			t.Run(in.name+"/"+how.String(), func(t *testing.T) { keepsWhatItAcknowledged(t, in, how) })
		}
	}
}

func keepsWhatItAcknowledged(t *testing.T, in place, how os.Signal) {
	dir := t.TempDir()
	p := launch(t, in, dir)
	sub, two, pub := p.open("sub", persistent), p.open("two", persistent, v3), p.open("pub", persistent)
	sub.sub("a/#", 1)
	two.sub("a/#", 2)
	sub.disconnect()
	two.disconnect()
	pub.burst("a/b", 0, 50)
	pub.publish1("r", "retained", retain)
	pub.publish("a/c", "twice?", 2, 40)
	pub.expect(packets.Pubrec)
	p.end(how)

	p = launch(t, in, dir)
	pub = p.open("pub", persistent)
	require.True(t, pub.connack.SessionPresent)
	pub.publish("a/c", "twice?", 2, 40, dup)
	pub.expect(packets.Pubrec)
	for _, c := range []*tc{p.open("sub", persistent), p.open("two", persistent, v3)} {
		require.True(t, c.connack.SessionPresent)
		require.Equal(t, append(numbers(0, 50), "twice?"), c.collect(51))
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
	p := launch(t, killed[0], dir)
	sub := p.open("sub", persistent)
	sub.sub("load/+", 1)
	sub.disconnect()
	for range 4 {
		var all, begun sync.WaitGroup
		for i := range publishers {
			c := p.open("pub"+strconv.Itoa(i), persistent)
			begun.Add(1)
			all.Go(func() { acked[i] = c.publishUntilGone("load/"+strconv.Itoa(i), acked[i], begun.Done) })
		}
		begun.Wait()
		time.Sleep(time.Duration(rnd.IntN(100)) * time.Millisecond) // at any moment: that is the test
		p.end(syscall.SIGKILL)
		all.Wait()
		p = launch(t, killed[0], dir)
	}
	require.Zero(t, p.open("last").publish1("load/last", "").ReasonCode)
	sub = p.open("sub", persistent)
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
func (c *tc) publishUntilGone(topic string, from int, begun func()) (acked int) {
	first := sync.OnceFunc(begun)
	defer first()
	acked = from
	for next := from; ; {
		for ; next < acked+64; next++ {
			pk := encode(c.t, publishPacket(topic, strconv.Itoa(next), 1, uint16(next%1000)+1), c.version)
			if _, err := c.conn.Write(pk); err != nil {
				break
			}
		}
		pk, err := c.read(patience)
		if err != nil || pk.FixedHeader.Type != packets.Puback || pk.ReasonCode != 0 {
			return acked
		}
		acked++
		first()
	}
}
