// SPDX-License-Identifier: Apache-2.0

package mappers

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/broker/client"
	"github.com/edgebus/edgebus/topics"
	"github.com/edgebus/edgebus/topics/resource"
)

// commandClient asks for commands.
type commandClient struct {
	n *fakeNode
	c *client.Client
}

func (n *fakeNode) commander() *commandClient { return &commandClient{n, n.client()} }

// ask returns the answer to a command of the lamp's: its code, and the result or the error.
func (x *commandClient) ask(name, payload string, expiry time.Duration) (topics.AnswerCode, string) {
	return x.askOf("lamp", name, payload, expiry)
}

func (x *commandClient) askOf(device, name, payload string, expiry time.Duration) (topics.AnswerCode, string) {
	r, err := x.c.Request(x.n.t.Context(), client.Message{
		Topic: "v1/nodes/n1/devices/" + device + "/commands/" + name, Payload: []byte(payload), Expiry: expiry,
	})
	require.NoError(x.n.t, err)
	return topics.AnswerCode(r.Property(topics.PropCode)), string(r.Payload) + r.Property(topics.PropError)
}

func TestCommands(t *testing.T) {
	n := newNode(t)
	d := newToys("lamp")
	log := filepath.Join(t.TempDir(), "drives")
	n.attach("lamp", "toy", nil, toyModel(nil))
	n.run(d, func(o *Options) { o.DriveLog = log })
	n.eventually("devices/lamp/state", "online")
	x := n.commander()
	code, text := x.ask("beep", "twice", 0)
	require.Equal(t, topics.CodeOK, code)
	require.Equal(t, "beep twice", text)
	code, text = x.ask("jump", "", 0)
	require.Equal(t, topics.CodeRefused, code)
	require.Contains(t, text, "no command jump")
	lines, err := os.ReadFile(log)
	require.NoError(t, err)
	require.Contains(t, string(lines), `"command":"beep","value":"twice"`)

	d.toys["lamp"].die(errors.New("cable cut"))
	code, text = x.ask("beep", "once more", 0)
	require.Contains(t, []topics.AnswerCode{topics.CodeFailed, topics.CodeDeviceOffline}, code, "it may have been reading just then")
	require.Contains(t, text, "cable cut")
	n.eventually("devices/lamp/state", "offline")
	code, _ = x.ask("beep", "again", 0)
	require.Equal(t, topics.CodeDeviceOffline, code)
	require.NotContains(t, d.toys["lamp"].log(), "beep again")
}

// Commands wait for a busy device, not too many and not for too long.
func TestCommandsWait(t *testing.T) {
	n := newNode(t)
	d := newToys("lamp")
	n.attach("lamp", "toy", nil, toyModel(nil))
	var ahead atomic.Int64
	n.run(d, func(o *Options) {
		o.CallTimeout = time.Minute
		o.Now = func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) }
	})
	n.eventually("devices/lamp/state", "online")
	toy := d.toys["lamp"]
	block := make(chan struct{})
	toy.mu.Lock()
	toy.block, toy.stuck = block, make(chan struct{}, 1)
	toy.mu.Unlock()
	n.want("lamp", "level", "1")
	<-toy.stuck
	x := n.commander()
	type answer struct {
		n    int
		code topics.AnswerCode
	}
	answers := make(chan answer, maxCommands+1)
	ask := func(i int, expiry time.Duration) {
		code, _ := x.ask("beep", strconv.Itoa(i), expiry)
		answers <- answer{i, code}
	}
	go ask(0, 30*time.Second)
	for i := range maxCommands {
		go ask(i+1, 0)
	}
	got := <-answers
	require.Equal(t, topics.CodeBusy, got.code, "the last one finds no room")
	ahead.Store(int64(31 * time.Second))
	toy.mu.Lock()
	toy.block = nil
	toy.mu.Unlock()
	close(block)
	expired, done := 0, 0
	for range maxCommands {
		switch a := <-answers; a.code {
		case topics.CodeExpired:
			require.Zero(t, a.n)
			expired++
		case topics.CodeOK:
			done++
		}
	}
	if got.n == 0 { // the one with a time was the one too many
		require.Equal(t, maxCommands, done)
		return
	}
	require.Equal(t, 1, expired)
	require.Equal(t, maxCommands-1, done)
	require.NotContains(t, toy.log(), "beep 0")
}

// What waits for a busy device when the mapper is stopped is not executed, and told so.
func TestCommandsOfAMapperThatStops(t *testing.T) {
	n := newNode(t)
	d := newToys("lamp", "bell")
	n.attach("lamp", "toy", nil, toyModel(nil))
	n.attach("bell", "toy", nil, toyModel(nil))
	stop := n.run(d, nil)
	n.eventually("devices/lamp/state", "online")
	n.eventually("devices/bell/state", "online")
	toy := d.toys["lamp"]
	toy.mu.Lock()
	toy.block, toy.stuck = make(chan struct{}), make(chan struct{}, 1)
	toy.mu.Unlock()
	<-toy.stuck
	x := n.commander()
	type answer struct {
		code topics.AnswerCode
		text string
	}
	told := make(chan answer, 1)
	_, err := x.c.Request(t.Context(), client.Message{Topic: "v1/nodes/n1/devices/bell/commands/beep"})
	require.NoError(t, err) // so that the client listens for answers, and what it asks goes out at once
	go func() {
		code, text := x.ask("beep", "late", 0)
		told <- answer{code, text}
	}()
	require.Eventually(t, func() bool { return len(n.published("devices/lamp/commands/beep")) == 1 }, testTimeout, pollInterval)
	code, _ := x.askOf("bell", "beep", "", 0) // behind it, and so the other is waiting
	require.Equal(t, topics.CodeOK, code)
	stop()
	got := <-told
	require.Equal(t, topics.CodeDeviceOffline, got.code)
	require.Contains(t, got.text, "stopping")
	require.Empty(t, toy.log())
}

// A command that the Device's spec has sets properties, of whatever driver; a wrong one sets none.
func TestMethodsOfAModelAreCommands(t *testing.T) {
	n := newNode(t)
	d := newToys("lamp")
	n.commands = []resource.DeviceCommand{{Name: "switch", Properties: []string{"power"}}, {Name: "scene", Properties: []string{"level", "power"}}}
	n.attach("lamp", "toy", nil, toyModel(nil))
	n.run(d, nil)
	n.eventually("devices/lamp/state", "online")
	x := n.commander()
	code, text := x.ask("switch", "ON", 0)
	require.Equal(t, topics.CodeOK, code, text)
	n.eventually("devices/lamp/reported/power", "ON")
	code, text = x.ask("scene", `{"power":"OFF","level":40}`, 0)
	require.Equal(t, topics.CodeOK, code, text)
	n.eventually("devices/lamp/reported/power", "OFF")
	n.eventually("devices/lamp/reported/level", "40")
	for payload, why := range map[string]string{
		`{"level":101,"power":"ON"}`: "maximum", `{"temp":"1"}`: "scene sets level, power", "ON": "JSON object", `{"power":null}`: "scene sets",
	} {
		code, text = x.ask("scene", payload, 0)
		require.Equal(t, topics.CodeRefused, code, payload)
		require.Contains(t, text, why)
	}
	code, text = x.ask("switch", "green", 0)
	require.Equal(t, topics.CodeRefused, code)
	require.Contains(t, text, "ON, OFF")
	code, _ = x.ask("beep", "twice", 0)
	require.Equal(t, topics.CodeOK, code, "the driver's own")
}
