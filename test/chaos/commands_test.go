// SPDX-License-Identifier: Apache-2.0

package chaos

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/edgebus/edgebus/broker/client"
	"github.com/edgebus/edgebus/test/stand"
	"github.com/edgebus/edgebus/topics"
)

// asker sends commands to a device that the virtual mapper drives, one after the other,
// and knows what came of each. It asks only while it listens for answers: who asks
// earlier on a connection may have the answer go by.
type commandSender struct {
	c    *client.Client
	name string

	mu      sync.Mutex
	listens bool
	count   int
	over    chan struct{}               // closed when the last command has its answer, or nobody promises one any more
	answers map[int][]topics.AnswerCode // by number
	refused map[int]bool                // by the acknowledgement
	faults  []string
}

// commandTime is how long an asker waits at most: its commands expire.
const commandTime = time.Second

func newAsker(s *stand.Stand, name, broker string) *commandSender {
	a := &commandSender{name: name, over: make(chan struct{}), answers: map[int][]topics.AnswerCode{}, refused: map[int]bool{}}
	close(a.over)
	a.c = s.Client(broker, func(o *client.Options) {
		o.Subscriptions = []client.Subscription{{Filter: a.replies(), QoS: 1}}
		o.OnMessage = a.hear
		o.OnConnect = func(context.Context, bool) error {
			a.listen(true)
			return nil
		}
		o.OnDisconnect = func(error) {
			a.listen(false)
			a.end(0)
		}
	})
	return a
}

func (a *commandSender) replies() string { return "answers/" + a.name }

func (a *commandSender) listen(does bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.listens = does
}

// run asks until stop is closed, and sees its last command to its end.
func (a *commandSender) run(ctx context.Context, stop <-chan struct{}) {
	for {
		select {
		case <-stop:
			return
		case <-time.After(5 * time.Millisecond):
		}
		a.ask(ctx)
	}
}

// begin counts one more command, unless nobody would hear the answer.
func (a *commandSender) begin() (n int, over <-chan struct{}) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.listens {
		return 0, nil
	}
	a.count++
	a.over = make(chan struct{})
	return a.count, a.over
}

func (a *commandSender) ask(ctx context.Context) {
	n, over := a.begin()
	if n == 0 {
		return
	}
	m := client.Message{
		Topic: devicesPrefix + "bell/commands/reset", Payload: []byte(a.name + "/" + strconv.Itoa(n)), QoS: 1,
		ResponseTopic: a.replies(), Correlation: []byte(strconv.Itoa(n)), Expiry: commandTime,
	}
	a.c.PublishAsync(m, func(err error) {
		if err != nil {
			a.failed(n, err)
		}
	})
	select {
	case <-over:
	case <-ctx.Done():
		a.fault("command %d has no answer, though its asker was connected all the time", n)
	}
}

// failed ends a command that was refused, or whose connection was lost.
func (a *commandSender) failed(n int, err error) {
	if r := (*client.Refused)(nil); errors.As(err, &r) {
		a.mu.Lock()
		a.refused[n] = true
		a.mu.Unlock()
	}
	a.end(n)
}

func (a *commandSender) hear(m client.Message) {
	n, err := strconv.Atoi(string(m.Correlation))
	a.mu.Lock()
	known := err == nil && n > 0 && n <= a.count
	if known {
		a.answers[n] = append(a.answers[n], topics.AnswerCode(m.Property(topics.PropCode)))
	}
	a.mu.Unlock()
	if !known {
		a.fault("an answer to %q", m.Correlation)
		return
	}
	a.end(n)
}

// end ends the wait for a command; 0: for whichever is the last.
func (a *commandSender) end(n int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if n != 0 && n != a.count {
		return
	}
	select {
	case <-a.over:
	default:
		close(a.over)
	}
}

func (a *commandSender) fault(format string, args ...any) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.faults = append(a.faults, a.name+": "+fmt.Sprintf(format, args...))
}

// executedCodes says of each code whether a command with that answer was: those that
// are missing say perhaps.
var executedCodes = map[topics.AnswerCode]bool{
	topics.CodeOK: true, topics.CodeRefused: false, topics.CodeBusy: false, topics.CodeNodeOffline: false, topics.CodeMapperOffline: false,
	topics.CodeDeviceOffline: false,
}

// verdict compares the answers with how often each command was executed.
func (a *commandSender) verdict(answers map[int][]topics.AnswerCode, times map[string]int) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	faults := a.faults
	fault := func(format string, args ...any) { faults = append(faults, a.name+": "+fmt.Sprintf(format, args...)) }
	for n := 1; n <= a.count; n++ {
		codes, done := answers[n], times[a.name+"/"+strconv.Itoa(n)]
		if len(codes) > 1 {
			fault("command %d has the answers %v", n, codes)
		}
		if done > 1 {
			fault("command %d was executed %d times", n, done)
		}
		if a.refused[n] && done > 0 {
			fault("command %d was refused, and executed", n)
		}
		for _, code := range codes {
			if was, known := executedCodes[code]; known && was != (done == 1) {
				fault("command %d was answered with %s, and executed %d times", n, code, done)
			}
		}
	}
	if len(faults) > 0 {
		return errors.New(strings.Join(faults, "\n"))
	}
	return nil
}

func (a *commandSender) answered() map[int][]topics.AnswerCode {
	a.mu.Lock()
	defer a.mu.Unlock()
	return maps.Clone(a.answers)
}

// commands judges what became of all commands. Answers are read before what was
// executed: whose asker lost its connection may still be under way.
func (c *chaosRun) commands() error {
	answers := map[*commandSender]map[int][]topics.AnswerCode{}
	for _, a := range c.load.askers {
		answers[a] = a.answered()
	}
	times, err := c.executions()
	errs := []error{err}
	for _, a := range c.load.askers {
		errs = append(errs, a.verdict(answers[a], times))
	}
	return errors.Join(errs...)
}

// executions are how often each command was.
func (c *chaosRun) executions() (map[string]int, error) {
	file, err := os.Open(c.driveLog)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	times := map[string]int{}
	lines := bufio.NewScanner(file)
	for lines.Scan() {
		var d driveRecord
		if err := json.Unmarshal(lines.Bytes(), &d); err != nil {
			return nil, fmt.Errorf("drive log: %q: %w", lines.Text(), err)
		}
		if d.Command != "" {
			times[d.Value]++
		}
	}
	return times, lines.Err()
}

// tallyCommands sums up how commands ended.
func tallyCommands(askers []*commandSender) string {
	count, answered, done := 0, 0, 0
	for _, a := range askers {
		a.mu.Lock()
		count += a.count
		for _, codes := range a.answers {
			answered++
			if codes[0] == topics.CodeOK {
				done++
			}
		}
		a.mu.Unlock()
	}
	return fmt.Sprintf("%d of %d commands answered, %d with OK", answered, count, done)
}
