// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"sync"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/broker/client"
)

// load is what clients do all the time, and what they were told.
type load struct {
	c         *hubs
	ctx       context.Context //nolint:containedctx // of all clients
	http      http.Client
	registers *registers
	mail      *mailLoad
	watches   *watches
	work      sync.WaitGroup
	end       func()

	mu         sync.Mutex
	dice       *rand.Rand // of what clients do; what is broken has its own
	operations int
}

func startLoad(c *hubs, seed uint64) *load {
	l := &load{c: c, dice: rand.New(rand.NewPCG(seed, 2)), http: http.Client{Transport: &http.Transport{DialContext: clientDialer.DialContext, MaxIdleConnsPerHost: 4}}}
	l.ctx, l.end = context.WithCancel(c.t.Context())
	l.registers, l.mail, l.watches = &registers{l: l, began: time.Now()}, newMail(l), &watches{l: l}
	l.create("devicemodels", model("dial"))
	l.mail.start(l.ctx, &l.work)
	l.watches.start(l.ctx, &l.work)
	c.t.Cleanup(func() { l.end(); l.work.Wait() })
	return l
}

func (l *load) roll(n int) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.dice.IntN(n)
}

// connect runs an MQTT client that tries the hubs in turn, until ctx ends.
func (l *load) connect(ctx context.Context, o client.Options) (*client.Client, <-chan struct{}) {
	from := int(l.c.owner.Load())
	if l.roll(4) == 0 {
		from = l.roll(len(l.c.each))
	}
	for i := range l.c.each {
		o.Servers = append(o.Servers, "mqtt://"+l.c.each[(from+i)%len(l.c.each)].mqtt)
	}
	o.KeepAlive, o.ConnectTimeout, o.Backoff = cmp.Or(o.KeepAlive, 2*time.Second), cmp.Or(o.ConnectTimeout, time.Second), client.Backoff{Min: 20 * time.Millisecond, Max: 200 * time.Millisecond}
	if o.Dial == nil {
		o.Dial = clientDialer.DialContext
	}
	cl, err := client.New(o)
	require.NoError(l.c.t, err)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = cl.Run(ctx)
	}()
	return cl, done
}

// check looks at a round's end at what everybody was promised; whole: also at the sessions whose clients are away.
func (l *load) check(whole bool) error {
	n, err := l.registers.check()
	l.operations += n
	return errors.Join(err, l.watches.check(l.ctx), l.mail.check(l.ctx, whole))
}

func (l *load) String() string {
	return fmt.Sprintf("%s, %d operations of registers, %d objects", l.mail, l.operations, l.watches.count)
}
