// SPDX-License-Identifier: Apache-2.0

// Package limits is what bounds a broker, from the configuration to the sessions: one type,
// whose defaults are in hub.yaml and core.yaml, which say what each limit means. A limit that is
// 0 is none.
package limits

import (
	"cmp"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// Limits bound what clients can make a broker hold.
type Limits struct {
	Connections    int           `yaml:"connections" min:"1"`
	PerUser        int           `yaml:"perUser" min:"0"`
	PerAddress     int           `yaml:"perAddress" min:"0"`
	Sessions       int           `yaml:"sessions" min:"1"`
	ConnectRate    int           `yaml:"connectRate" min:"1"`
	ConnectTimeout time.Duration `yaml:"connectTimeout" min:"1"`
	WrongPasswords int           `yaml:"wrongPasswords" min:"1"`
	Subscriptions  int           `yaml:"subscriptions" min:"1"`
	WriteTimeout   time.Duration `yaml:"writeTimeout" min:"1"`
	Packet         Size          `yaml:"packet" min:"1"`
	Unfinished     Size          `yaml:"unfinished" min:"1"`
	Request        Size          `yaml:"request" min:"1"`
	Requests       int           `yaml:"requests" min:"1"`
	Watches        int           `yaml:"watches" min:"1"`
	PacketRate     int           `yaml:"packetRate" min:"0"`
	Inflight       int           `yaml:"inflight" min:"1" max:"65535"`
	ReceiveMaximum int           `yaml:"receiveMaximum" min:"1" max:"65535"`
	TopicAliases   int           `yaml:"topicAliases" min:"1" max:"65535"`
	KeepAlive      time.Duration `yaml:"keepAlive"`
	Session        Session       `yaml:"session"`
	Retained       Retained      `yaml:"retained"`
	Commands       Commands      `yaml:"commands"`
}

// Session bounds what sessions hold.
type Session struct {
	Bytes  Size          `yaml:"bytes" min:"1"`
	All    Size          `yaml:"all" min:"1"`
	State  Size          `yaml:"state" min:"1"`
	Expiry time.Duration `yaml:"expiry"`
}

// Retained bounds the retained messages outside the nodes' trees.
type Retained struct {
	Bytes Size `yaml:"bytes" min:"1"`
}

// Commands bound commands in time and number.
type Commands struct {
	Timeout time.Duration `yaml:"timeout" min:"1"`
	Longest time.Duration `yaml:"longest"`
	Client  int           `yaml:"client" min:"1"`
	All     int           `yaml:"all" min:"1"`
}

const maxUint16 = math.MaxUint16 // what MQTT can say

// Complete puts in the place of a limit that is 0 the most that there can be.
func (l Limits) Complete() Limits {
	setDefault(&l.Connections, math.MaxInt32)
	setDefault(&l.Sessions, math.MaxInt32)
	setDefault(&l.ConnectRate, math.MaxInt32)
	setDefault(&l.ConnectTimeout, math.MaxInt64/4)
	setDefault(&l.WrongPasswords, math.MaxInt32)
	setDefault(&l.Subscriptions, math.MaxInt32)
	setDefault(&l.WriteTimeout, math.MaxInt64/4)
	setDefault(&l.Packet, 256<<20-1)
	setDefault(&l.Inflight, maxUint16)
	setDefault(&l.ReceiveMaximum, maxUint16)
	setDefault(&l.TopicAliases, maxUint16)
	setDefault(&l.Session.All, math.MaxInt64/4)
	setDefault(&l.Session.Bytes, l.Session.All)
	setDefault(&l.Session.Expiry, math.MaxUint32*time.Second)
	return l
}

func setDefault[T comparable](field *T, value T) {
	*field = cmp.Or(*field, value)
}

// Size is a number of bytes, written 512, 64KiB, 64MiB or 1GiB, or 25%: of the memory that the
// process may use.
type Size int64

var sizeUnits = []struct {
	factor int64
	name   string
}{{1 << 30, "GiB"}, {1 << 20, "MiB"}, {1 << 10, "KiB"}}

// UnmarshalText reads a size.
func (s *Size) UnmarshalText(text []byte) error {
	number, unit := string(text), int64(1)
	if part, ok := strings.CutSuffix(number, "%"); ok {
		n, err := strconv.ParseFloat(strings.TrimSpace(part), 64)
		if err != nil || !(n > 0 && n <= 100) {
			return fmt.Errorf("%q is not a part of the memory, such as 25%%", text)
		}
		*s = Size(n / 100 * float64(MemoryLimit()))
		return nil
	}
	for _, u := range sizeUnits {
		if rest, ok := strings.CutSuffix(number, u.name); ok {
			number, unit = rest, u.factor
		}
	}
	n, err := strconv.ParseInt(strings.TrimSpace(number), 10, 64)
	if err != nil || n < 0 || n > math.MaxInt64/unit {
		return fmt.Errorf("%q is not a size, such as 512, 64KiB or 64MiB, or 25%% of the memory", text)
	}
	*s = Size(n * unit)
	return nil
}

func (s Size) String() string {
	for _, u := range sizeUnits {
		if n := int64(s); n >= u.factor && n%u.factor == 0 {
			return strconv.FormatInt(n/u.factor, 10) + u.name
		}
	}
	return strconv.FormatInt(int64(s), 10)
}
