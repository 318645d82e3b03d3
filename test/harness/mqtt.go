// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"

	"github.com/edgebus/edgebus/broker/client"
	"github.com/edgebus/edgebus/topics/backoff"
)

var clientCount atomic.Uint64

// Publish publishes as an MQTT 5 client would, and returns the broker's verdict.
func Publish(ctx context.Context, broker string, m client.Message, change func(*client.Options)) error {
	o := client.Options{
		Servers:    []string{"mqtt://" + broker},
		ClientID:   "test-" + strconv.FormatUint(clientCount.Add(1), 10) + "-" + strconv.FormatInt(time.Now().UnixNano()%1e9, 36),
		CleanStart: true,
		Attempts:   1,
		Log:        zerolog.Nop(),
	}
	if change != nil {
		change(&o)
	}
	c, err := client.New(o)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	running, stop := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- c.Run(running) }()
	err = c.Publish(ctx, m)
	stop()
	if end := <-ended; end != nil && errors.Is(err, client.ErrClosed) {
		err = end // it never got so far
	}
	cancel()
	return err
}

// Await waits until a topic holds a value, as mosquitto_sub sees it: the value
// itself, a pattern between slashes, or nothing for a topic that is cleared.
func Await(ctx context.Context, broker, topic, want string, within time.Duration) error {
	matches := func(got string) bool { return got == want }
	if len(want) > 1 && strings.HasPrefix(want, "/") && strings.HasSuffix(want, "/") {
		pattern, err := regexp.Compile(want[1 : len(want)-1])
		if err != nil {
			return err
		}
		matches = pattern.MatchString
	}
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	var seen []string
	for ctx.Err() == nil {
		if want == "" {
			if isClear(ctx, broker, topic) {
				return nil
			}
			continue
		}
		ok, err := watchTopic(ctx, broker, topic, func(got string) bool {
			seen = append(seen, got)
			return matches(got)
		})
		if ok {
			return nil
		}
		if err != nil && errors.Is(err, exec.ErrNotFound) {
			return err
		}
	}
	if want == "" {
		return fmt.Errorf("%s was not cleared within %s", topic, within)
	}
	return fmt.Errorf("%s was not %q within %s; it was %q", topic, want, within, seen[max(0, len(seen)-10):])
}

func mosquittoSub(ctx context.Context, broker, topic string, more ...string) *exec.Cmd {
	host, port, _ := net.SplitHostPort(broker)
	args := append([]string{"-h", host, "-p", port, "-V", "5", "-q", "1", "-t", topic}, more...)
	return exec.CommandContext(ctx, "mosquitto_sub", args...)
}

// watchTopic hands over a topic's values until one is enough, or the connection ends.
func watchTopic(ctx context.Context, broker, topic string, enough func(string) bool) (bool, error) {
	ctx, cancel := context.WithCancel(ctx)
	cmd := mosquittoSub(ctx, broker, topic)
	cmd.SysProcAttr = ownGroup()
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		cancel()
		return false, err
	}
	defer func() {
		cancel()
		_ = cmd.Wait()
	}()
	lines := bufio.NewScanner(out)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		if enough(lines.Text()) {
			return true, nil
		}
	}
	backoff.Sleep(ctx, 50*time.Millisecond) // the broker is away; mosquitto_sub gives up at once
	return false, lines.Err()
}

// isClear is whether a broker that answers keeps nothing on a topic.
func isClear(ctx context.Context, broker, topic string) bool {
	const timedOut = 27
	err := mosquittoSub(ctx, broker, topic, "--retained-only", "-C", "1", "-W", "1").Run()
	var exit *exec.ExitError
	return errors.As(err, &exit) && exit.ExitCode() == timedOut
}
