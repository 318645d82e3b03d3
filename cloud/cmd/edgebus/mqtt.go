package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/edgebus/edgebus/broker/client"
	"github.com/edgebus/edgebus/configs"
	"github.com/edgebus/edgebus/topics"
	"github.com/edgebus/edgebus/topics/resource"
)

// brokerFlags is a command's access to a broker.
type brokerFlags struct {
	access
	target hubTarget // what the flags mean, once they are resolved
}

func (b *brokerFlags) flags(cmd *cobra.Command) { b.access.flags(cmd, "", "server") }

func (b *brokerFlags) open() (err error) {
	b.target, err = b.resolve()
	return err
}

// checkMQTT says why a broker isn't asked: its address is not known, or the password would be sent in the clear.
func (p *hubTarget) checkMQTT() error {
	if p.MQTT == "" {
		return resource.Errorf(resource.Invalid, "server", "the context has no MQTT address: give it one (edgebus context set NAME --mqtt mqtts://…), or --server")
	}
	u, err := url.Parse(p.MQTT)
	if err != nil || p.User+p.Token+p.TokenFile == "" && u.User == nil || configs.IsLoopback(u.Hostname()) {
		return nil // the client says what is wrong with an address
	}
	if !slices.Contains([]string{"mqtts", "ssl", "tls", "wss", "unix"}, u.Scheme) {
		return resource.Errorf(resource.Invalid, "server", "the password or token would cross the network in the clear to %s: use mqtts://", u.Redacted())
	}
	return nil
}

// mqttOptions are the options of a client of the broker, for the command what.
func (p *hubTarget) mqttOptions(what string) (o client.Options, err error) {
	if err := p.checkMQTT(); err != nil {
		return o, exitErrorf(misused, "%w", err)
	}
	o = client.Options{
		Servers: []string{p.MQTT}, ClientID: fmt.Sprintf("edgebus-%s-%d-%d", what, os.Getpid(), time.Now().UnixNano()%1e6),
		User: p.User, CleanStart: true, Backoff: client.Backoff{Min: 200 * time.Millisecond, Max: 3 * time.Second},
	}
	if o.TLS, err = p.tlsConfig(); err == nil {
		o.Password, err = p.password()
	}
	if p.User == "" && p.Token+p.TokenFile != "" {
		o.Secret = p.bearerToken
	}
	return o, err
}

// connectTimeout is how long to wait for the answer to CONNECT.
const connectTimeout = 3 * time.Second

// withBroker connects, calls do while the connection is up, and disconnects.
func (p *hubTarget) withBroker(ctx context.Context, o client.Options, do func(context.Context, *client.Client) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	up := make(chan struct{}, 1)
	o.Attempts, o.ConnectTimeout = cmp.Or(o.Attempts, 2), connectTimeout
	o.OnConnect = func(context.Context, bool) error {
		select {
		case up <- struct{}{}:
		default:
		}
		return nil
	}
	c, err := client.New(o)
	if err != nil {
		return exitErrorf(misused, "%w", err)
	}
	ended := make(chan error, 1)
	go func() {
		err := c.Run(ctx)
		if err != nil {
			cancel(connectionError(err, p.MQTT))
		}
		ended <- err
	}()
	select {
	case <-up:
		err = do(ctx, c)
	case <-ctx.Done():
		err = ctx.Err()
	}
	if cause := context.Cause(ctx); cause != nil && !errors.Is(cause, context.Canceled) && !errors.Is(cause, context.DeadlineExceeded) {
		err = cause
	}
	cancel(nil)
	<-ended
	return err
}

func newPub() *cobra.Command {
	var b brokerFlags
	m := client.Message{}
	cmd := &cobra.Command{
		Use:   "pub TOPIC VALUE|-",
		Short: "Publish a message, as the context's user",
		Long: `Publish a message by MQTT, with the context's user, and print the reason if it is refused.
A VALUE of - is read from standard input; an empty one clears a retained topic.

` + exitCodes,
		Example: `  edgebus pub v1/nodes/demo/devices/lamp/desired/power ON
  edgebus pub site/notice "closed today" --retain
  edgebus pub v1/nodes/demo/devices/lamp/desired/brightness 40 --server mqtt://127.0.0.1:2883`,
		Args: cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			m.Topic, m.Payload = args[0], []byte(args[1])
			if args[1] == "-" {
				var err error
				if m.Payload, err = io.ReadAll(cmd.InOrStdin()); err != nil {
					return err
				}
			}
			if m.QoS > 2 {
				return exitErrorf(misused, "--qos is 0, 1 or 2")
			}
			if err := b.open(); err != nil {
				return err
			}
			o, err := b.target.mqttOptions("pub")
			if err != nil {
				return err
			}
			return b.target.withBroker(cmd.Context(), o, func(ctx context.Context, c *client.Client) error { return c.Publish(ctx, m) })
		},
	}
	b.flags(cmd)
	cmd.Flags().Uint8VarP(&m.QoS, "qos", "q", 1, "quality of service: 0, 1 or 2; with 0 a refusal is not reported")
	cmd.Flags().BoolVarP(&m.Retain, "retain", "r", false, "retain the message")
	return cmd
}

func newSub() *cobra.Command {
	var b brokerFlags
	var output string
	var count int
	cmd := &cobra.Command{
		Use:   "sub FILTER…",
		Short: "Show messages, as the context's user, until ctrl-C",
		Long: `Subscribe by MQTT, with the context's user, and print each message: its topic and its
value, or with -o json an object a line. + stands for one level of a topic, # for all that follow.

` + exitCodes,
		Example: `  edgebus sub 'v1/nodes/demo/#'
  edgebus sub 'v1/nodes/+/state' -o json
  edgebus sub v1/nodes/demo/devices/lamp/reported/power --count 1`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := b.open(); err != nil {
				return err
			}
			o, err := b.target.mqttOptions("sub")
			if err != nil {
				return err
			}
			for _, filter := range args {
				if err := topics.CheckFilter(filter); err != nil {
					return exitErrorf(misused, "%w", err)
				}
				o.Subscriptions = append(o.Subscriptions, client.Subscription{Filter: filter, QoS: 1})
			}
			return subscribe(cmd, &b.target, o, output, count)
		},
	}
	b.flags(cmd)
	outputFlag(cmd, &output, "", "text", "json")
	cmd.Flags().IntVar(&count, "count", 0, "end after this many messages (default: at ctrl-C)")
	return cmd
}

func subscribe(cmd *cobra.Command, p *hubTarget, o client.Options, output string, count int) error {
	_, screen := terminalSize(cmd.OutOrStdout())
	enough := make(chan error, 1)
	seen := 0
	end := func(err error) {
		select {
		case enough <- err:
		default:
		}
	}
	o.OnMessage = func(m client.Message) {
		if count > 0 && seen == count {
			return
		}
		if err := printMessage(cmd.OutOrStdout(), m, output, screen); err != nil {
			end(err)
		}
		if seen++; seen == count {
			end(nil)
		}
	}
	o.OnDisconnect = func(err error) {
		if cmd.Context().Err() == nil && !errors.Is(err, client.ErrClosed) && !errors.As(err, new(*client.Refused)) {
			printWarning(cmd.ErrOrStderr(), "the connection was lost, and is being restored: "+err.Error())
		}
	}
	return ignoreEnd(p.withBroker(cmd.Context(), o, func(ctx context.Context, _ *client.Client) error {
		select {
		case err := <-enough:
			return err
		case <-ctx.Done():
			return ctx.Err()
		}
	}))
}

// printMessage prints a message on a line, without control characters on a terminal.
func printMessage(out io.Writer, m client.Message, output string, screen bool) error {
	if output == "json" {
		user := map[string]string{}
		for _, p := range m.User {
			user[p.Key] = p.Value
		}
		encoder := json.NewEncoder(out)
		encoder.SetEscapeHTML(false)
		return encoder.Encode(struct {
			Topic    string            `json:"topic"`
			Value    string            `json:"value"`
			Retained bool              `json:"retained,omitempty"`
			User     map[string]string `json:"userProperties,omitempty"`
		}{m.Topic, string(m.Payload), m.Retained, user})
	}
	topic, value := m.Topic, string(m.Payload)
	if screen {
		topic, value = printableText(topic, 300), printableText(value, 2000)
	}
	_, err := fmt.Fprintf(out, "%s %s\n", topic, value)
	return err
}

func newCall() *cobra.Command {
	var h hub
	var mqtt string
	cmd := &cobra.Command{
		Use:   "call DEVICE COMMAND [PAYLOAD]",
		Short: "Send a device a command, and print its answer",
		Long: `Send a device a command, such as beep, and print its answer. A command is executed once at most,
now or not at all, and is never stored. The device's mapper decides which commands there are.

` + exitCodes,
		Example:           "  edgebus call lamp beep\n  edgebus call lamp beep twice --timeout 5s",
		Args:              cobra.RangeArgs(2, 3),
		ValidArgsFunction: completeTwin(&h, ""),
		RunE: func(cmd *cobra.Command, args []string) error {
			broker := h.access
			broker.mqttFlag, broker.mqtt = "mqtt", mqtt
			answer, err := callDevice(cmd.Context(), &h, broker, args[0], args[1], strings.Join(args[2:], ""))
			if err != nil {
				return err
			}
			if answer != "" {
				_, err = fmt.Fprintln(cmd.OutOrStdout(), strings.TrimSuffix(answer, "\n"))
			}
			return err
		},
	}
	h.flags(cmd)
	cmd.Flags().StringVar(&mqtt, "mqtt", "", "the hub's MQTT address (default: the context's, or "+defaultMQTT+")")
	return cmd
}

// callDevice asks the hub for the device's node, and sends the command by MQTT.
func callDevice(ctx context.Context, h *hub, broker access, device, command, payload string) (string, error) {
	var d resource.Device
	if _, err := h.readObject(ctx, resource.KindDevice, device, &d); err != nil {
		return "", err
	}
	if d.Spec.NodeName == "" {
		return "", exitErrorf(refused, "device %s is bound to no node (spec.nodeName): it can't be sent a command", device)
	}
	address := topics.Address{Node: d.Spec.NodeName, Kind: topics.KindCommand, Device: device, Name: command}
	if _, err := topics.Parse(address.String()); err != nil {
		return "", exitErrorf(misused, "%q is no name of a command: %w", command, err)
	}
	p, err := broker.resolve()
	if err != nil {
		return "", err
	}
	o, err := p.mqttOptions("call")
	if err != nil {
		return "", err
	}
	limit := cmp.Or(h.timeout, waitTime)
	ctx, cancel := context.WithTimeout(ctx, limit+time.Second) // the broker answers at the limit
	defer cancel()
	var answer client.Message
	err = p.withBroker(ctx, o, func(ctx context.Context, c *client.Client) (err error) {
		answer, err = c.Request(ctx, client.Message{Topic: address.String(), Payload: []byte(payload), QoS: 1, Expiry: limit})
		return err
	})
	if errors.Is(err, context.DeadlineExceeded) {
		return "", exitErrorf(late, "no answer after %s", limit)
	}
	if err != nil {
		return "", err
	}
	switch code, text := answer.Property(topics.PropCode), answer.Property(topics.PropError); topics.AnswerCode(code) {
	case "", topics.CodeOK:
		return string(answer.Payload), nil
	case topics.CodeRefused:
		return "", exitErrorf(refused, "%s", printableText(text, 500))
	case topics.CodeExpired:
		return "", exitErrorf(late, "%s: %s", code, printableText(text, 500))
	default:
		return "", exitErrorf(failed, "%s: %s", printableText(code, 40), printableText(text, 500))
	}
}

func newSession() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "session",
		Short: "List and end the sessions of MQTT clients",
		Long: `List and end the sessions of MQTT clients, of the hub's broker or, with --server, of a node's own
(http://127.0.0.1:10550 on the node). A session belongs to the user who made it: as long as it lasts, no other
user can connect with its client identifier.

This needs an operator of all nodes; on a node's own broker an operator of the node.`,
		Example: "  edgebus session list\n  edgebus session end reader-7\n  edgebus session list --server http://127.0.0.1:10550",
	}
	cmd.AddCommand(newSessionList(), newSessionEnd())
	return cmd
}

func newSessionList() *cobra.Command {
	var o hub
	var output string
	cmd := &cobra.Command{
		Use:     "list",
		Short:   "List the sessions of connected and disconnected clients",
		Long:    "List sessions: the user, whether the client is connected, how much is queued for it, and how many messages\nits queue had no room for (missed), which counts over restarts.\n\n" + exitCodes,
		Example: "  edgebus session list\n  edgebus session list -o json | jq '.sessions[] | select(.connected | not)'",
		Args:    cobra.NoArgs,
	}
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		list, err := o.Sessions(cmd.Context())
		if err != nil {
			return err
		}
		rows := [][]string{{"CLIENT", "USER", "CONNECTED", "REMOTE", "AWAY SINCE", "EXPIRES", "SUBSCRIPTIONS", "MESSAGES", "BYTES", "MISSED"}}
		for _, s := range list.Sessions {
			rows = append(rows, []string{
				printableText(s.Client, widestCell), printableText(s.User, widestCell), strconv.FormatBool(s.Connected), s.Remote, s.Since, s.Expires,
				strconv.Itoa(s.Subscriptions), strconv.Itoa(s.Messages), strconv.Itoa(s.Bytes), strconv.FormatInt(s.Missed, 10),
			})
		}
		return printRows(cmd.OutOrStdout(), output, list, rows)
	}
	o.flags(cmd)
	outputFlag(cmd, &output, "", "table", "json")
	return cmd
}

func newSessionEnd() *cobra.Command {
	var o hub
	return o.perArgument(&cobra.Command{
		Use:   "end CLIENT…",
		Short: "End sessions, their connections and their queues",
		Long: `End the sessions of clients, by their identifiers. A client that is connected is disconnected (0x98), its will is
published, and messages that are queued for it are dropped. The client identifier is free after that.

` + exitCodes,
		Example: "  edgebus session end reader-7",
	}, func(ctx context.Context, id string) (string, error) {
		return "session of " + printableText(id, widestCell) + " ended", o.EndSession(ctx, id)
	})
}
