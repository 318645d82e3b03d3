// SPDX-License-Identifier: Apache-2.0

//go:build testprogram

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"syscall"
	"time"

	"github.com/edgebus/edgebus/broker/client"
	"github.com/edgebus/edgebus/test/faults"
)

// linkTrouble is what a node may have with its cloud, and how it begins and ends.
type linkTrouble struct {
	name       string
	begin, end func(hub *benchProcess, link *faults.Proxy) error
}

func noTrouble(*benchProcess, *faults.Proxy) error { return nil }

func healLink(_ *benchProcess, link *faults.Proxy) error { link.Heal(); return nil }

func cutLink(kind faults.Cut) func(*benchProcess, *faults.Proxy) error {
	return func(_ *benchProcess, link *faults.Proxy) error { link.Cut(kind); return nil }
}

func signalHub(s syscall.Signal) func(*benchProcess, *faults.Proxy) error {
	return func(hub *benchProcess, _ *faults.Proxy) error { return syscall.Kill(hub.pid, s) }
}

var linkTroubles = []linkTrouble{
	{"none", noTrouble, noTrouble},
	{"the hub hangs", signalHub(syscall.SIGSTOP), signalHub(syscall.SIGCONT)},
	{"the network swallows everything", cutLink(faults.Blackhole), healLink},
	{"connections are reset", cutLink(faults.Reset), healLink},
	{"64 kbit/s, 500 ms each way", func(_ *benchProcess, link *faults.Proxy) error {
		link.Set(faults.Conditions{Delay: 500 * time.Millisecond, Bandwidth: 8 << 10})
		return nil
	}, func(_ *benchProcess, link *faults.Proxy) error { link.Set(faults.Conditions{}); return nil }},
}

// measureCloudAway measures what programs on a node notice of the state of its cloud.
func measureCloudAway(b benchRun) error {
	fmt.Fprintf(b.w, "A hundred times a second a mapper publishes a reported value on its node (QoS 1, stored), and another program there gets it.\n"+
		"Meanwhile the cloud is as the first column says, in alternating runs.\n\n| trouble | p50 | ratio | p99 | ratio |\n|---|---|---|---|---|\n")
	hub, web, err := hubWithAPI(b)
	if err != nil {
		return err
	}
	defer hub.stop()
	if err := errors.Join(postObject(web, "devicemodels", benchModel(1)), postObject(web, "devices", benchDevice(0))); err != nil {
		return err
	}
	link, err := faults.New(faults.Options{Target: hub.addr})
	if err != nil {
		return err
	}
	defer link.Close()
	dir, err := os.MkdirTemp("", "edgebus-bench-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	core, _, err := linkedCore(b, dir, link.Addr())
	if err != nil {
		return err
	}
	defer core.stop()
	if err := awaitDevice(core.addr); err != nil {
		return err
	}
	took := make([][]time.Duration, len(linkTroubles))
	for range b.rounds {
		for i, t := range linkTroubles {
			if err := t.begin(hub, link); err != nil {
				return err
			}
			list, err := localRoundTrips(core.addr, b.d)
			if err = errors.Join(err, t.end(hub, link)); err != nil {
				return fmt.Errorf("%s: %w", t.name, err)
			}
			took[i] = append(took[i], list...)
		}
	}
	p50, p99 := quantile(took[0], 0.5), quantile(took[0], 0.99)
	worst := 0.0
	for i, t := range linkTroubles {
		h, n := quantile(took[i], 0.5), quantile(took[i], 0.99)
		fmt.Fprintf(b.w, "| %s | %s | %.2f | %s | %.2f |\n", t.name, formatDuration(h), float64(h)/float64(p50), formatDuration(n), float64(n)/float64(p99))
		worst = max(worst, float64(n)/float64(p99))
	}
	fmt.Fprintf(b.w, "\nAim: no effect on the node: p99 within 2 times that without trouble: %s.\n", aimText(worst < 2))
	return nil
}

const mapperTopic = "v1/nodes/n1/devices/d0/reported/p0"

// awaitDevice waits until a core has the device.
func awaitDevice(addr string) error {
	mapper, err := connectClient(addr, "mapper")
	if err != nil {
		return err
	}
	defer mapper.stop()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	for {
		err := mapper.Publish(ctx, client.Message{Topic: mapperTopic, Payload: []byte("0"), QoS: 1})
		if err == nil || ctx.Err() != nil {
			return err
		}
		time.Sleep(10 * time.Millisecond) // until the hub's map is there
	}
}

// localRoundTrips times values from a mapper of a core to another of its clients.
func localRoundTrips(addr string, d time.Duration) (list []time.Duration, err error) {
	mapper, err := connectClient(addr, "mapper")
	if err != nil {
		return nil, err
	}
	defer mapper.stop()
	arrived := make(chan string, 16)
	reader, err := connectClient(addr, "reader", func(o *client.Options) {
		o.Subscriptions = []client.Subscription{{Filter: mapperTopic, QoS: 1}}
		o.OnMessage = func(m client.Message) { arrived <- string(m.Payload) }
	})
	if err != nil {
		return nil, err
	}
	defer reader.stop()
	run := time.Now().UnixNano()
	for begin, i := time.Now(), 0; time.Since(begin) < d || i < 20; i++ {
		time.Sleep(time.Until(begin.Add(time.Duration(i) * tripEvery)))
		want, sent := strconv.FormatInt(run+int64(i), 10), time.Now()
		mapper.PublishAsync(client.Message{Topic: mapperTopic, Payload: []byte(want), QoS: 1}, nil)
		for got := ""; got != want; {
			select {
			case got = <-arrived:
			case <-time.After(30 * time.Second):
				return nil, errors.New("a value did not arrive")
			}
		}
		list = append(list, time.Since(sent))
	}
	return list, nil
}
