// SPDX-License-Identifier: Apache-2.0

package configs

import (
	"encoding/base64"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"path"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/edgebus/edgebus/topics"
	"github.com/edgebus/edgebus/topics/resource"
)

const streamLetters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_"

// textRules are what the tag "is" of a setting demands of its text, or of each text of a list.
var textRules = map[string]func(text string) error{
	"name": makeRule(topics.ValidName, "is no name: use a-z, 0-9, and - or . in between"),
	"glob": makeRule(func(s string) bool {
		_, err := path.Match(s, "")
		return err == nil && s != ""
	}, "is no pattern, in which * is for any text"),
	"path":     makeRule(isCleanPath, "is not an absolute path without .., . and a slash at its end"),
	"autoPath": makeRule(func(s string) bool { return s == Auto || path.IsAbs(s) }, "is neither auto nor an absolute path"),
	"socket":   makeRule(func(s string) bool { return s != "" && len(s) <= maxSocketPath }, fmt.Sprintf("is neither auto nor a path of at most %d bytes", maxSocketPath)),
	"bridged":  checkBridged,
	"hubID": func(s string) error {
		_, err := resource.ParseHubID(s)
		return err
	},
	"minisign": makeRule(func(s string) bool {
		raw, err := base64.StdEncoding.DecodeString(s)
		return err == nil && len(raw) == 42 && string(raw[:2]) == "Ed"
	}, "is no public key of minisign: give the second line of its file"),
	"source": makeRule(func(s string) bool {
		u, err := url.Parse(s)
		return err == nil && (u.Scheme == "https" || u.Scheme == "oci") && u.Host != "" && strings.HasSuffix(u.Path, "/")
	}, "is not the beginning of an address up to a slash, such as https://example.com/edgebus/ or oci://ghcr.io/example/"),
	"timeout": makeRule(func(s string) bool {
		d, err := time.ParseDuration(s)
		return s == "" || err == nil && d > 0
	}, "is not a duration of more than 0, such as 30s"),
	"network": makeRule(func(s string) bool {
		_, err := netip.ParsePrefix(s)
		return err == nil
	}, "is not a network such as 127.0.0.1/32"),
	"port": makeRule(func(s string) bool {
		n, err := strconv.ParseUint(s, 10, 16)
		return err == nil && n > 0
	}, "is no port, 1 to 65535"),
	"host": checkHost,
	"advertised": func(s string) error {
		if s == "" {
			return nil
		}
		return checkHost(s)
	},
	"natsServer": makeRule(func(s string) bool {
		u, err := url.Parse(s)
		return err == nil && (u.Scheme == "nats" || u.Scheme == "tls") && u.Host != "" && u.User == nil
	}, "is no address of a NATS server: write nats://host:4222, or tls:// for TLS alone, and who signs in into credentials"),
	"stream": makeRule(func(s string) bool { return s != "" && strings.Trim(s, streamLetters) == "" && len(s) <= 64 }, "is no name of a stream: use letters, digits, - and _"),
	"monitor": makeRule(func(s string) bool {
		u, err := url.Parse(s)
		return err == nil && (u.Scheme == "http" || u.Scheme == "https") && u.Host != ""
	}, "is no monitoring address of a NATS server, such as http://host:8222"),
	"origin": makeRule(isOrigin, "is no origin: http:// or https://, a host in lower case and, if it isn't the usual one, a port, such as https://app.example.com"),
	"label": func(s string) error {
		key, value, ok := strings.Cut(s, "=")
		if err := resource.CheckLabels("", map[string]string{key: value}); !ok || err != nil {
			return errors.Join(fmt.Errorf("%q is no label: write key=value", s), err)
		}
		return nil
	},
	"labelFrom": func(s string) error {
		key, field, _ := strings.Cut(s, "=")
		if err := resource.CheckLabels("", map[string]string{key: ""}); err != nil || !slices.Contains(resource.SystemFields, field) {
			return fmt.Errorf("%q: write key=field, with one of the fields %s", s, strings.Join(resource.SystemFields, ", "))
		}
		return nil
	},
}

// makeRule makes a rule of a condition.
func makeRule(holds func(text string) bool, what string) func(string) error {
	return func(text string) error {
		if holds(text) {
			return nil
		}
		return fmt.Errorf("%q %s", text, what)
	}
}

// checkTags reports which rules of its tags a setting breaks: of a list each of its texts, and of a list of structs each of their fields.
func checkTags(f settingField, report reportFunc) {
	if !f.isList() {
		if err := f.check(); err != nil {
			report(f.key, "%v", err)
		}
		return
	}
	for i := range f.value.Len() {
		member := settingField{key: fmt.Sprintf("%s[%d]", f.key, i), value: f.value.Index(i), tag: f.tag}
		if member.value.Kind() != reflect.Struct {
			checkTags(member, report)
			continue
		}
		for _, field := range leavesOf(member.value, member.key+".") {
			checkTags(field, report)
		}
	}
}

func isCleanPath(p string) bool { return path.IsAbs(p) && path.Clean(p) == p }

// checkBridged wants a filter of users' own topics, in which {node} may stand for a node's name.
func checkBridged(filter string) error {
	filter = strings.ReplaceAll(filter, "{node}", "node")
	if err := topics.CheckFilter(filter); err != nil {
		return err
	}
	if first, _, _ := strings.Cut(filter, "/"); topics.IsTree(filter) || strings.HasPrefix(first, "$") {
		return fmt.Errorf("%q: what is below %s travels by itself, and $ names no topics of users", filter, topics.Prefix)
	}
	return nil
}

// checkHost wants a name or an address, with a port or without.
func checkHost(text string) error {
	host, port := text, ""
	if h, p, err := net.SplitHostPort(text); err == nil {
		host, port = h, p
	}
	if n, err := strconv.ParseUint(port, 10, 16); port != "" && (err != nil || n == 0) {
		return fmt.Errorf("%q has no port from 1 to 65535", text)
	}
	if _, err := netip.ParseAddr(host); err != nil && !topics.ValidName(strings.ToLower(host)) {
		return fmt.Errorf("%q is neither a host's name nor an IP address, with a port or without", text)
	}
	return nil
}

func isOrigin(text string) bool {
	u, err := url.Parse(text)
	return err == nil && (u.Scheme == "http" || u.Scheme == "https") && u.Host != "" && u.Scheme+"://"+strings.ToLower(u.Host) == text
}
