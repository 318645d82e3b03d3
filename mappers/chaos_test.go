// SPDX-License-Identifier: Apache-2.0

package mappers

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

type driveRecord struct {
	Device, Property, Value string
	Ver                     uint64
}

// nextVer is the version that the next wish will have.
func (n *fakeNode) nextVer(device, property string) uint64 {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.ver[device+"/"+property] + 1
}

func readDrives(t *testing.T, file string) (list []driveRecord) {
	f, err := os.Open(file)
	require.NoError(t, err)
	defer func() { _ = f.Close() }()
	for s := bufio.NewScanner(f); s.Scan(); {
		var d driveRecord
		require.NoError(t, json.Unmarshal(s.Bytes(), &d))
		list = append(list, d)
	}
	return list
}

// TestChaos: whatever dies when, a version is driven once at most, never after a newer one, and the last one wins. The
// devices remember what they were told, as hardware does whose mapper or node is restarted.
func TestChaos(t *testing.T) {
	for seed := range uint64(6) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			c := newChaos(t, seed)
			for range 80 {
				c.step()
			}
			c.settle()
			c.check()
		})
	}
}

type chaosRun struct {
	t      *testing.T
	random *rand.Rand
	n      *fakeNode
	d      *toyDriver
	file   string
	stop   func()
	up     bool
	last   map[string]string
	names  []string
}

func newChaos(t *testing.T, seed uint64) *chaosRun {
	c := &chaosRun{
		t: t, random: rand.New(rand.NewPCG(seed, 99)), n: newNode(t), file: filepath.Join(t.TempDir(), "drives"),
		last: map[string]string{}, names: []string{"lamp", "radio", "fan"}, up: true,
	}
	c.d = newToys(c.names...)
	for _, name := range c.names {
		c.n.attach(name, "toy", nil, toyModel(nil))
	}
	c.start()
	return c
}

func (c *chaosRun) start() {
	var d Driver = c.d
	if c.random.IntN(2) == 0 {
		d = busDriver{c.d}
	}
	c.stop = c.n.run(d, func(o *Options) { o.DriveLog = c.file })
}

func (c *chaosRun) step() {
	name := c.names[c.random.IntN(len(c.names))]
	toy := c.d.toys[name]
	switch p := c.random.IntN(100); {
	case p < 60:
		value := strconv.FormatUint(c.n.want(name, "level", strconv.FormatUint(c.n.nextVer(name, "level"), 10)), 10)
		c.last[name] = value
	case p < 70:
		toy.die(errors.New("unplugged"))
	case p < 80:
		toy.die(nil)
	case p < 86:
		toy.mu.Lock()
		toy.wfail = errors.New("the answer got lost")
		toy.mu.Unlock()
	case p < 91 && c.up:
		c.n.stop()
		c.up = false
	case p < 97 && !c.up:
		c.n.start()
		c.up = true
	case p >= 97:
		c.stop()
		c.start()
	}
	time.Sleep(time.Duration(c.random.IntN(8)) * time.Millisecond) // gives what is under way a chance to be cut in the middle
}

func (c *chaosRun) settle() {
	if !c.up {
		c.n.start()
	}
	for _, name := range c.names {
		c.d.toys[name].die(nil)
		if value, any := c.last[name]; any {
			c.n.eventually("devices/"+name+"/reported/level", value)
		}
		c.n.eventually("devices/"+name+"/state", "online")
	}
}

func (c *chaosRun) check() {
	newest := map[string]uint64{}
	for _, d := range readDrives(c.t, c.file) { // attempts: one that failed is made again
		require.GreaterOrEqual(c.t, d.Ver, newest[d.Device], "%s was driven to version %d late", d.Device, d.Ver)
		newest[d.Device] = d.Ver
	}
	for _, name := range c.names {
		last := 0
		for _, w := range c.d.toys[name].log() { // what reached the device; its values are the versions
			ver, err := strconv.Atoi(strings.TrimPrefix(w, "level="))
			require.NoError(c.t, err)
			require.Greater(c.t, ver, last, "%s was driven to version %d again or late", name, ver)
			last = ver
		}
		if value, any := c.last[name]; any {
			require.Equal(c.t, value, strconv.Itoa(last))
		}
	}
}
