// SPDX-License-Identifier: Apache-2.0

package devices

import (
	"context"
	"fmt"
	"io"
	"math"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/edgebus/edgebus/cloud/cli/access"
	"github.com/edgebus/edgebus/cloud/cli/exitcode"
	"github.com/edgebus/edgebus/cloud/cli/printer"
	"github.com/edgebus/edgebus/cloud/cli/terminal"
	"github.com/edgebus/edgebus/topics/resource"
)

const (
	plotWidth  = 72 // columns
	plotHeight = 12 // rows
	maxText    = 200
)

// historyOptions are the flags of edgebus history.
type historyOptions struct {
	access.Hub
	since, until time.Duration
	csv, points  bool
	delete       bool
}

func newHistory() *cobra.Command {
	o := &historyOptions{}
	cmd := &cobra.Command{
		Use:   "history DEVICE [PROPERTY]",
		Short: "Draw what a property was, or export or delete the history of a device",
		Long: `Draw what a property was. Where more was recorded than there is room for, each column has the range of its values.
A column without a mark is a time in which nothing was known.

--csv prints every change as CSV, of one property or of all of the device's. --delete deletes what the properties of the device were, on
its node and on the hub. With --server http://127.0.0.1:10550 the node itself answers, also when the hub is away.

` + exitcode.Help,
		Example: `  edgebus history thermostat temperature
  edgebus history thermostat temperature --since 168h --points
  edgebus history thermostat --since 720h --csv > thermostat.csv
  edgebus history thermostat --delete`,
		Args:              cobra.RangeArgs(1, 2),
		ValidArgsFunction: completeTwin(&o.Hub, ""),
		RunE: func(cmd *cobra.Command, args []string) error {
			property := ""
			if len(args) > 1 {
				property = args[1]
			}
			return o.run(cmd.Context(), cmd.OutOrStdout(), args[0], property)
		},
	}
	o.Register(cmd)
	cmd.Flags().DurationVar(&o.since, "since", 24*time.Hour, "how long ago the history begins")
	cmd.Flags().DurationVar(&o.until, "until", 0, "how long ago it ends (default: now)")
	cmd.Flags().BoolVar(&o.csv, "csv", false, "print every change as CSV")
	cmd.Flags().BoolVar(&o.points, "points", false, "print the points as a table")
	cmd.Flags().BoolVar(&o.delete, "delete", false, "delete the history of the device, on its node and on the hub")
	cmd.MarkFlagsMutuallyExclusive("csv", "points", "delete")
	return cmd
}

func (o *historyOptions) run(ctx context.Context, out io.Writer, device, property string) error {
	if o.since <= o.until || o.until < 0 {
		return exitcode.Errorf(exitcode.Misused, "--since must be longer ago than --until")
	}
	if property == "" && !o.csv && !o.delete {
		return exitcode.Errorf(exitcode.Misused, "name the property to draw: edgebus history %s PROPERTY; or export all of them with --csv", device)
	}
	var d resource.Device
	if _, err := o.ReadObject(ctx, resource.KindDevice, device, &d); err != nil {
		return err
	}
	path := "/apis/" + resource.APIVersion + "/namespaces/" + d.Metadata.Namespace + "/devices/" + d.Metadata.Name + "/history"
	if o.delete {
		if property != "" {
			return exitcode.Errorf(exitcode.Misused, "--delete deletes the history of the whole device: leave %s out", property)
		}
		if err := o.Remove(ctx, path); err != nil {
			return err
		}
		_, err := fmt.Fprintf(out, "the history of device %s is deleted, on the node as soon as it is online\n", device)
		return err
	}
	now := time.Now()
	q := url.Values{"from": {resource.FormatTime(now.Add(-o.since))}, "to": {resource.FormatTime(now.Add(-o.until))}}
	if property != "" {
		q.Set("property", property)
	}
	if o.csv {
		q.Set("format", "csv")
		body, _, err := o.Download(ctx, path+"?"+q.Encode())
		if err != nil {
			return err
		}
		defer body.Close()
		_, err = io.Copy(out, body)
		return err
	}
	q.Set("points", strconv.Itoa(plotWidth))
	var a resource.HistoryAnswer
	if err := o.Get(ctx, path+"?"+q.Encode(), &a); err != nil {
		return err
	}
	if len(a.Times) == 0 {
		return noHistory(out, a)
	}
	if _, text := firstValue(a).(string); text || o.points {
		return printPoints(out, a)
	}
	return drawHistory(out, a)
}

func noHistory(out io.Writer, a resource.HistoryAnswer) error {
	text := "nothing was recorded of property %s of device %s yet\n"
	if a.Since != 0 {
		text = "nothing is known of property %s of device %s in this time; there is data since " + formatPlotTime(a.Since) + "\n"
	}
	_, err := fmt.Fprintf(out, text, a.Property, a.Device)
	return err
}

func firstValue(a resource.HistoryAnswer) any {
	for _, v := range a.Values {
		if v != nil {
			return v
		}
	}
	return nil
}

func formatPlotTime(ms int64) string { return time.UnixMilli(ms).Local().Format("2006-01-02 15:04:05") }

func printPoints(out io.Writer, a resource.HistoryAnswer) error {
	rows := [][]string{{"TIME", "VALUE", "MIN", "MAX"}}
	limit := func(list []*float64, i int) string {
		if i >= len(list) || list[i] == nil {
			return ""
		}
		return formatPlotNumber(*list[i])
	}
	for i := range a.Times {
		text := "–"
		switch v := a.Values[i].(type) {
		case float64:
			text = formatPlotNumber(v)
		case string:
			text = terminal.Printable(v, maxText)
		}
		rows = append(rows, []string{formatPlotTime(a.Times[i]), text, limit(a.Min, i), limit(a.Max, i)})
	}
	return new(printer.AlignedRows).Write(out, rows)
}

func formatPlotNumber(v float64) string { return strconv.FormatFloat(v, 'g', 6, 64) }

// plotColumn is the range of the values in a column.
type plotColumn struct {
	low, high float64
	any       bool
}

func (c *plotColumn) note(low, high float64) {
	if !c.any {
		c.low, c.high, c.any = low, high, true
		return
	}
	c.low, c.high = min(c.low, low), max(c.high, high)
}

// plotColumns are the points of an answer as columns. A change is so until the next one; a point stands for its step.
func plotColumns(a resource.HistoryAnswer) []plotColumn {
	columns := make([]plotColumn, plotWidth)
	width := float64(a.To-a.From) / plotWidth
	at := func(t int64) int { return min(max(int(float64(t-a.From)/width), 0), plotWidth-1) }
	for i, v := range a.Values {
		value, ok := v.(float64)
		if !ok {
			continue
		}
		low, high, last := value, value, at(a.Times[i])
		if i < len(a.Min) && a.Min[i] != nil && i < len(a.Max) && a.Max[i] != nil {
			low, high = *a.Min[i], *a.Max[i]
		}
		if a.Step == 0 && i+1 < len(a.Times) {
			last = at(a.Times[i+1])
		} else if a.Step > 0 {
			last = at(a.Times[i] + a.Step - 1)
		}
		for c := at(a.Times[i]); c <= last; c++ {
			columns[c].note(low, high)
		}
	}
	return columns
}

// drawHistory draws numbers, with the greatest at the top and since when there is data below.
func drawHistory(out io.Writer, a resource.HistoryAnswer) error {
	columns := plotColumns(a)
	low, high := math.Inf(1), math.Inf(-1)
	for _, c := range columns {
		if c.any {
			low, high = min(low, c.low), max(high, c.high)
		}
	}
	if low == high {
		low, high = low-1, high+1
	}
	band := (high - low) / plotHeight
	var b strings.Builder
	for row := plotHeight - 1; row >= 0; row-- {
		label := ""
		switch row {
		case plotHeight - 1:
			label = formatPlotNumber(high)
		case 0:
			label = formatPlotNumber(low)
		}
		fmt.Fprintf(&b, "%10s │", label)
		bottom := low + float64(row)*band
		line := make([]rune, 0, plotWidth)
		for _, c := range columns {
			in := c.any && c.high >= bottom && (c.low < bottom+band || row == plotHeight-1)
			line = append(line, map[bool]rune{true: '█', false: ' '}[in])
		}
		b.WriteString(strings.TrimRight(string(line), " ") + "\n")
	}
	from, to := formatPlotTime(a.From), formatPlotTime(a.To)
	fmt.Fprintf(&b, "%10s └%s\n", "", strings.Repeat("─", plotWidth))
	fmt.Fprintf(&b, "%10s  %s%*s\n", "", from, plotWidth-len(from), to)
	fmt.Fprintf(&b, "%s of %s; data since %s\n", a.Property, a.Device, formatPlotTime(a.Since))
	_, err := io.WriteString(out, b.String())
	return err
}
