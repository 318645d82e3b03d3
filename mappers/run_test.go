// SPDX-License-Identifier: Apache-2.0

package mappers

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/broker"
	"github.com/edgebus/edgebus/broker/client"
	"github.com/edgebus/edgebus/topics/resource"
)

func TestDeviceIsFoundReportedAndDriven(t *testing.T) {
	n := newNode(t)
	d := newToys("lamp")
	n.attach("lamp", "Toy", nil, toyModel(nil))
	n.attach("other", "modbus", nil, toyModel(nil))
	n.run(d, nil)
	n.eventually("mappers/m1/state", "online")
	n.eventually("devices/lamp/state", "online")
	n.eventually("devices/lamp/reported/temp", "20")
	ver := n.want("lamp", "power", "ON")
	n.applied("lamp", "power", "ON", ver)
	require.Equal(t, []string{"power=ON"}, d.toys["lamp"].log())
	state, _ := n.at("devices/other/state")
	require.Empty(t, state, "another protocol's device")
}

func TestUnchangedIsNotReportedAgainAndDeadbandHolds(t *testing.T) {
	n := newNode(t)
	d := newToys("lamp")
	n.attach("lamp", "toy", nil, toyModel(nil))
	n.run(d, nil)
	n.eventually("devices/lamp/reported/temp", "20")
	d.toys["lamp"].set("temp", "20.4")
	d.toys["lamp"].set("level", "7")
	n.eventually("devices/lamp/reported/level", "7") // so the cycle has seen both
	d.toys["lamp"].set("temp", "20.6")
	n.eventually("devices/lamp/reported/temp", "20.6")
	require.Equal(t, []string{"20", "20.6"}, n.published("devices/lamp/reported/temp"))
	require.Equal(t, []string{"0", "7"}, n.published("devices/lamp/reported/level"))
}

func TestHeartbeat(t *testing.T) {
	n := newNode(t)
	d := newToys("lamp")
	n.attach("lamp", "toy", nil, toyModel(func(m *resource.DeviceModel) {
		m.Spec.PropertyVisitors[0].Visitors[2].ReportCycle = 50
	}))
	n.run(d, nil)
	require.Eventually(t, func() bool { return len(n.published("devices/lamp/reported/temp")) >= 3 }, testTimeout, pollInterval)
}

func TestRefusals(t *testing.T) {
	n := newNode(t)
	d := newToys("lamp")
	n.attach("lamp", "toy", nil, toyModel(nil))
	n.run(d, nil)
	n.eventually("devices/lamp/state", "online")
	r := n.refused("lamp", "level", n.want("lamp", "level", "101"), OutOfRange)
	require.Contains(t, r.Message, "100")
	n.refused("lamp", "level", n.want("lamp", "level", "much"), Invalid)
	n.refused("lamp", "temp", n.want("lamp", "temp", "5"), ReadOnly)
	past := broker.UserProperty{Key: "validUntil", Value: resource.FormatTime(time.Now().Add(-time.Second))}
	n.refused("lamp", "level", n.want("lamp", "level", "5", past), Expired)
	d.toys["lamp"].mu.Lock()
	d.toys["lamp"].refuse = Refuse(Rejected, "the toy is sulking")
	d.toys["lamp"].mu.Unlock()
	n.refused("lamp", "level", n.want("lamp", "level", "6"), Rejected)
	require.Empty(t, d.toys["lamp"].log())
	state, _ := n.at("devices/lamp/state")
	require.Equal(t, "online", state, "a refusal is no failure of the device")
}

func TestSameValueAnewIsNotDriven(t *testing.T) {
	n := newNode(t)
	d := newToys("lamp")
	n.attach("lamp", "toy", nil, toyModel(nil))
	n.run(d, nil)
	n.applied("lamp", "power", "ON", n.want("lamp", "power", "ON"))
	n.applied("lamp", "power", "ON", n.want("lamp", "power", "ON"))
	require.Equal(t, []string{"power=ON"}, d.toys["lamp"].log())
	d.toys["lamp"].set("power", "OFF") // somebody at the switch
	n.applied("lamp", "power", "OFF", 2)
	n.applied("lamp", "power", "ON", n.want("lamp", "power", "ON"))
	require.Equal(t, []string{"power=ON", "power=ON"}, d.toys["lamp"].log())
}

func TestRestartSkipsWhatIsApplied(t *testing.T) {
	n := newNode(t)
	d := newToys("lamp")
	n.attach("lamp", "toy", nil, toyModel(nil))
	stop := n.run(d, nil)
	n.applied("lamp", "power", "ON", n.want("lamp", "power", "ON"))
	n.applied("lamp", "level", "5", n.want("lamp", "level", "5"))
	stop()
	n.eventually("mappers/m1/state", "offline")
	v := n.want("lamp", "level", "6") // while it is away
	n.run(d, nil)
	n.applied("lamp", "level", "6", v)
	require.Equal(t, []string{"power=ON", "level=5", "level=6"}, d.toys["lamp"].log())
}

// muteDriver's devices can be written and not read.
type muteDriver struct{ *toyDriver }

type muteToy struct{ t *toyDevice }

func (m muteToy) Write(ctx context.Context, property, value string) error {
	return m.t.Write(ctx, property, value)
}
func (m muteToy) Close() error { return m.t.Close() }

func (d muteDriver) Open(ctx context.Context, dev Device) (Session, error) {
	s, err := d.toyDriver.Open(ctx, dev)
	if err != nil {
		return nil, err
	}
	return muteToy{s.(*toyDevice)}, nil
}

func TestDeviceThatCannotBeRead(t *testing.T) {
	n := newNode(t)
	d := muteDriver{newToys("lamp")}
	n.attach("lamp", "toy", nil, toyModel(nil))
	stop := n.run(d, nil)
	n.eventually("devices/lamp/state", "online")
	n.applied("lamp", "level", "5", n.want("lamp", "level", "5"))
	n.applied("lamp", "level", "5", n.want("lamp", "level", "5"))
	stop()
	n.run(d, nil)
	n.eventually("devices/lamp/state", "online")
	n.applied("lamp", "power", "ON", n.want("lamp", "power", "ON"))
	require.Equal(t, []string{"level=5", "power=ON"}, d.toys["lamp"].log())
}

// pushDriver's devices tell of changes by themselves.
type pushDriver struct {
	muteDriver
	changes chan string
}

type pushToy struct {
	muteToy
	changes chan string
}

func (d pushDriver) Open(ctx context.Context, dev Device) (Session, error) {
	s, err := d.muteDriver.Open(ctx, dev)
	if err != nil {
		return nil, err
	}
	return pushToy{s.(muteToy), d.changes}, nil
}

func (p pushToy) Push(ctx context.Context, emit func(property, value string)) error {
	for {
		select {
		case v := <-p.changes:
			switch v {
			case "":
				return errors.New("the line went dead")
			case "panic":
				panic("no such change")
			}
			emit("temp", v)
			emit("no-such-property", v)
		case <-ctx.Done():
			return nil
		}
	}
}

func TestPush(t *testing.T) {
	n := newNode(t)
	d := pushDriver{muteDriver{newToys("lamp")}, make(chan string)}
	n.attach("lamp", "toy", nil, toyModel(nil))
	n.run(d, nil)
	d.changes <- "30"
	n.eventually("devices/lamp/reported/temp", "30")
	d.changes <- "31"
	n.eventually("devices/lamp/reported/temp", "31")
	d.changes <- ""
	d.changes <- "32" // taken by a new session
	n.eventually("devices/lamp/reported/temp", "32")
	n.eventually("devices/lamp/state", "online")
	d.changes <- "panic" // which must not end the mapper
	d.changes <- "33"
	n.eventually("devices/lamp/reported/temp", "33")
	require.Equal(t, []string{"online"}, n.published("devices/lamp/state"), "a line that is there again at once is no news")
}

// readPushDriver's devices can be read, and send changes.
type readPushDriver struct{ pushDriver }

type readPushToy struct {
	*toyDevice
	push pushToy
}

func (d readPushDriver) Open(ctx context.Context, dev Device) (Session, error) {
	s, err := d.pushDriver.Open(ctx, dev)
	if err != nil {
		return nil, err
	}
	return readPushToy{d.toys[dev.Name], s.(pushToy)}, nil
}

func (p readPushToy) Push(ctx context.Context, emit func(property, value string)) error {
	return p.push.Push(ctx, emit)
}

// What a device has sent is no sign of life when it has been said since that it is offline, though both are seen at once.
func TestAChangeBeforeADeviceIsSaidToBeOfflineDoesNotBringItBack(t *testing.T) {
	n := newNode(t)
	d := readPushDriver{pushDriver{muteDriver{newToys("lamp")}, make(chan string)}}
	n.attach("lamp", "toy", nil, toyModel(nil))
	n.run(d, nil)
	n.eventually("devices/lamp/state", "online")
	n.eventually("devices/lamp/reported/temp", "20")
	lamp, block := d.toys["lamp"], make(chan struct{})
	lamp.mu.Lock()
	lamp.block, lamp.stuck, lamp.dead = block, make(chan struct{}, 1), SaysOffline(errors.New("its bridge says so"))
	lamp.mu.Unlock()
	<-lamp.stuck
	d.changes <- "30"
	d.changes <- "30" // the first was taken
	lamp.mu.Lock()
	lamp.block = nil
	lamp.mu.Unlock()
	close(block)
	n.eventually("devices/lamp/state", "offline")
	lamp.set("temp", "21")
	lamp.die(nil)
	n.eventually("devices/lamp/reported/temp", "21")
	n.eventually("devices/lamp/state", "online")
	require.Equal(t, []string{"online", "offline", "online"}, n.published("devices/lamp/state"))
	require.Equal(t, []string{"20", "30", "21"}, n.published("devices/lamp/reported/temp"))
}

func TestAChangeBeforeAFailureIsReportedBeforeIt(t *testing.T) {
	n := newNode(t)
	d := readPushDriver{pushDriver{muteDriver{newToys("lamp")}, make(chan string)}}
	n.attach("lamp", "toy", nil, toyModel(nil))
	n.run(d, nil)
	n.eventually("devices/lamp/state", "online")
	n.eventually("devices/lamp/reported/temp", "20")
	lamp, block := d.toys["lamp"], make(chan struct{})
	lamp.mu.Lock()
	lamp.block, lamp.stuck, lamp.dead = block, make(chan struct{}, 1), errors.New("unplugged")
	lamp.mu.Unlock()
	<-lamp.stuck
	d.changes <- "30"
	d.changes <- "30" // the first was taken
	lamp.mu.Lock()
	lamp.block = nil
	lamp.mu.Unlock()
	close(block)
	n.eventually("devices/lamp/state", "offline")
	lamp.set("temp", "21")
	lamp.die(nil)
	require.Eventually(t, func() bool {
		return slices.Equal([]string{"online", "offline", "online"}, n.published("devices/lamp/state"))
	}, testTimeout, pollInterval)
	n.eventually("devices/lamp/reported/temp", "21")
	require.Equal(t, []string{"20", "30", "21"}, n.published("devices/lamp/reported/temp"))
}

func TestRestartComparesBeforeItWrites(t *testing.T) {
	n := newNode(t)
	d := newToys("lamp")
	n.attach("lamp", "toy", nil, toyModel(nil))
	d.toys["lamp"].set("power", "ON") // written by a mapper that was killed before it could report
	v := n.want("lamp", "power", "ON")
	n.run(d, nil)
	n.applied("lamp", "power", "ON", v)
	require.Empty(t, d.toys["lamp"].log())
}

func TestAfterPowerLoss(t *testing.T) {
	for atBoot, want := range map[string]struct {
		value  string
		writes []string
		code   string
	}{
		"":                {"80", []string{"level=80", "level=80"}, ""},
		resource.BootLast: {"80", []string{"level=80", "level=80"}, ""},
		resource.BootSafe: {"10", []string{"level=80", "level=10"}, SafeValue},
		resource.BootHold: {"0", []string{"level=80"}, Held},
	} {
		t.Run("atBoot "+atBoot, func(t *testing.T) {
			n := newNode(t)
			d := newToys("lamp")
			n.attach("lamp", "toy", nil, toyModel(func(m *resource.DeviceModel) {
				m.Spec.Properties[1].AtBoot, m.Spec.Properties[1].SafeValue = atBoot, "10"
			}))
			stop := n.run(d, nil)
			n.eventually("devices/lamp/state", "online")
			v := n.want("lamp", "level", "80")
			n.applied("lamp", "level", "80", v)
			stop()
			d.toys["lamp"].set("level", "0") // the device has forgotten
			n.run(d, nil)
			require.Eventually(t, func() bool { return slices.Equal(want.writes, d.toys["lamp"].log()) }, testTimeout, pollInterval)
			n.applied("lamp", "level", want.value, v)
			if want.code != "" {
				n.refused("lamp", "level", v, want.code)
			}
			n.applied("lamp", "level", "90", n.want("lamp", "level", "90")) // the next one is as any other
		})
	}
}

func TestAtBootOfValuesNeverApplied(t *testing.T) {
	n := newNode(t)
	d := newToys("lamp")
	n.attach("lamp", "toy", nil, toyModel(func(m *resource.DeviceModel) {
		m.Spec.Properties[0].AtBoot = resource.BootHold
		m.Spec.Properties[1].AtBoot, m.Spec.Properties[1].SafeValue = resource.BootSafe, "10"
	}))
	power, level := n.want("lamp", "power", "ON"), n.want("lamp", "level", "80")
	n.run(d, nil)
	n.refused("lamp", "power", power, Held)
	n.refused("lamp", "level", level, SafeValue)
	n.applied("lamp", "level", "10", level)
	require.Equal(t, []string{"level=10"}, d.toys["lamp"].log())
}

func TestDeadDeviceGetsTheLatestOnly(t *testing.T) {
	n := newNode(t)
	d := newToys("lamp", "radio")
	n.attach("lamp", "toy", nil, toyModel(nil))
	n.attach("radio", "toy", nil, toyModel(nil))
	n.run(busDriver{d}, nil)
	n.eventually("devices/lamp/state", "online")
	d.toys["lamp"].die(errors.New("no answer"))
	n.eventually("devices/lamp/state", "offline")
	var last uint64
	for i := range 50 {
		last = n.want("lamp", "level", strconv.Itoa(i))
	}
	v := n.want("radio", "level", "3") // on the same bus
	n.applied("radio", "level", "3", v)
	d.toys["lamp"].die(nil)
	n.applied("lamp", "level", "49", last)
	n.eventually("devices/lamp/state", "online")
	require.Equal(t, []string{"level=49"}, d.toys["lamp"].log())
}

func TestWriteOfUnknownOutcomeIsNotRepeated(t *testing.T) {
	n := newNode(t)
	d := newToys("lamp")
	n.attach("lamp", "toy", nil, toyModel(nil))
	n.run(d, nil)
	n.eventually("devices/lamp/state", "online")
	d.toys["lamp"].mu.Lock()
	d.toys["lamp"].wfail = errors.New("timeout, but the device has it")
	d.toys["lamp"].mu.Unlock()
	n.applied("lamp", "level", "5", n.want("lamp", "level", "5"))
	require.Equal(t, []string{"level=5"}, d.toys["lamp"].log())
}

func TestBrokerRestartDrivesNothingTwice(t *testing.T) {
	n := newNode(t)
	d := newToys("lamp")
	n.attach("lamp", "toy", nil, toyModel(nil))
	n.run(d, nil)
	n.applied("lamp", "level", "5", n.want("lamp", "level", "5"))
	for i := range 3 {
		n.stop()
		d.toys["lamp"].set("temp", strconv.Itoa(30+i)) // goes on being collected
		v := n.want("lamp", "level", strconv.Itoa(10+i))
		n.start()
		n.applied("lamp", "level", strconv.Itoa(10+i), v)
		n.eventually("devices/lamp/reported/temp", strconv.Itoa(30+i))
		n.eventually("mappers/m1/state", "online")
	}
	require.Equal(t, []string{"level=5", "level=10", "level=11", "level=12"}, d.toys["lamp"].log())
}

func TestDevicesComeChangeAndGo(t *testing.T) {
	n := newNode(t)
	d := newToys("lamp", "radio")
	n.run(d, nil)
	n.attach("lamp", "toy", nil, toyModel(nil))
	n.applied("lamp", "level", "5", n.want("lamp", "level", "5"))
	n.attach("lamp", "toy", map[string]string{"bad": "yes"}, toyModel(nil))
	n.eventually("devices/lamp/state", "offline")
	n.attach("lamp", "toy", nil, toyModel(nil))
	n.eventually("devices/lamp/state", "online")
	n.applied("lamp", "level", "6", n.want("lamp", "level", "6"))
	require.Equal(t, []string{"level=5", "level=6"}, d.toys["lamp"].log())
	// the model allows more now: what was refused is applied
	v := n.want("lamp", "level", "150")
	n.refused("lamp", "level", v, OutOfRange)
	n.attach("lamp", "toy", nil, toyModel(func(m *resource.DeviceModel) { m.Spec.Properties[1].Maximum = nil }))
	n.applied("lamp", "level", "150", v)
	n.attach("lamp", "", nil, nil)
	n.attach("radio", "toy", nil, toyModel(nil))
	n.eventually("devices/radio/state", "online")
	toy := d.toys["lamp"]
	require.Eventually(t, func() bool {
		toy.mu.Lock()
		defer toy.mu.Unlock()
		return toy.closed == 3
	}, testTimeout, pollInterval)
	n.attach("radio", "modbus", nil, toyModel(nil)) // another mapper's from now on
	require.Eventually(t, func() bool {
		d.toys["radio"].mu.Lock()
		defer d.toys["radio"].mu.Unlock()
		return d.toys["radio"].closed == 1
	}, testTimeout, pollInterval)
}

func TestDeviceRemovedWhileAway(t *testing.T) {
	n := newNode(t)
	d := newToys("lamp")
	n.attach("lamp", "toy", nil, toyModel(nil))
	n.run(d, nil)
	n.eventually("devices/lamp/state", "online")
	n.stop()
	n.attach("lamp", "", nil, nil)
	n.start()
	require.Eventually(t, func() bool {
		d.toys["lamp"].mu.Lock()
		defer d.toys["lamp"].mu.Unlock()
		return d.toys["lamp"].closed == 1
	}, testTimeout, pollInterval)
}

func TestCoreThatCountsAnew(t *testing.T) {
	n := newNode(t)
	d := newToys("lamp")
	n.attach("lamp", "toy", nil, toyModel(nil))
	n.run(d, nil)
	for _, v := range []string{"1", "2", "3"} {
		n.applied("lamp", "level", v, n.want("lamp", "level", v))
	}
	n.stop()
	n.count(0)
	v := n.want("lamp", "level", "50")
	require.EqualValues(t, 1, v)
	n.start()
	n.applied("lamp", "level", "50", 1)
}

func TestStuckDeviceStallsNobodyAndStopIsQuick(t *testing.T) {
	n := newNode(t)
	d := newToys("lamp", "radio")
	n.attach("lamp", "toy", nil, toyModel(nil))
	n.attach("radio", "toy", nil, toyModel(nil))
	d.toys["lamp"].block = make(chan struct{})
	stop := n.run(d, func(o *Options) { o.CallTimeout = 10 * testTimeout })
	n.applied("radio", "level", "3", n.want("radio", "level", "3"))
	stop() // which fails the test when it takes too long
}

func (n *fakeNode) client() *client.Client {
	c, err := client.New(client.Options{Servers: []string{n.url()}, ClientID: "test", CleanStart: true})
	require.NoError(n.t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = c.Run(ctx)
	}()
	n.t.Cleanup(func() { cancel(); <-done })
	return c
}

func TestDriveLogHasOneLineForEachWrite(t *testing.T) {
	n := newNode(t)
	d := newToys("lamp")
	n.attach("lamp", "toy", nil, toyModel(nil))
	file := filepath.Join(t.TempDir(), "drives")
	n.run(d, func(o *Options) { o.DriveLog = file })
	n.applied("lamp", "level", "5", n.want("lamp", "level", "5"))
	n.applied("lamp", "power", "ON", n.want("lamp", "power", "ON"))
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	require.Len(t, lines, 2)
	require.Contains(t, lines[0], `{"device":"lamp","property":"level","value":"5","ver":1,"time":"`)
}

func TestManyChangesEndInTheLatest(t *testing.T) {
	n := newNode(t)
	d := newToys("lamp")
	n.attach("lamp", "toy", nil, toyModel(nil))
	n.run(d, nil)
	n.eventually("devices/lamp/state", "online")
	var v uint64
	for i := range 1000 {
		v = n.want("lamp", "level", strconv.Itoa(i%101))
	}
	n.applied("lamp", "level", strconv.Itoa(999%101), v)
	_, answers := 0, n.published("devices/lamp/reported/level")
	require.LessOrEqual(t, len(answers), 1001)
}

func TestOptionsThatCannotWork(t *testing.T) {
	for _, o := range []Options{
		{},
		{Name: "A"},
		{Name: "a", Collect: time.Microsecond},
		{Name: "a", Servers: []string{"nonsense"}},
		{Name: "a", Backoff: client.Backoff{Min: 2, Max: 1}},
	} {
		require.Error(t, Run(t.Context(), o, newToys()))
	}
}
