// SPDX-License-Identifier: Apache-2.0

package limits

import (
	"math"
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/require"
)

func TestTheMemoryLimitFollowsTheMachine(t *testing.T) {
	const gib, mib = int64(1 << 30), int64(1 << 20)
	for _, c := range []struct {
		name    string
		files   map[string]string
		goLimit int64
		want    int64
	}{
		{name: "nothing is known", want: gib},
		{name: "physical memory", files: map[string]string{"proc/meminfo": "MemTotal:  524288 kB\nMemFree: 1 kB\n"}, want: 512 * mib},
		{name: "GOMEMLIMIT", files: map[string]string{"proc/meminfo": "MemTotal: 524288 kB\n"}, goLimit: 100 * mib, want: 100 * mib},
		{name: "version 2, limit of a parent", files: map[string]string{
			"proc/meminfo": "MemTotal: 524288 kB\n", "proc/self/cgroup": "0::/system.slice/core.service\n",
			"sys/fs/cgroup/system.slice/memory.max": "134217728\n", "sys/fs/cgroup/system.slice/core.service/memory.max": "max\n",
		}, want: 128 * mib},
		{name: "version 2, in a container", files: map[string]string{
			"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": "67108864\n", "sys/fs/cgroup/memory.high": "33554432\n",
		}, want: 32 * mib},
		{name: "version 1", files: map[string]string{
			"proc/meminfo": "MemTotal: 524288 kB\n", "proc/self/cgroup": "9:cpu,memory:/docker/abc\n0::/\n",
			"sys/fs/cgroup/memory/docker/abc/memory.limit_in_bytes": "134217728\n",
		}, want: 128 * mib},
		{name: "version 1, in a container that sees the host's path", files: map[string]string{
			"proc/self/cgroup": "4:memory:/docker/abc\n", "sys/fs/cgroup/memory/memory.limit_in_bytes": "134217728\n",
		}, want: 128 * mib},
		{name: "version 1 without a limit", files: map[string]string{
			"proc/meminfo": "MemTotal: 524288 kB\n", "proc/self/cgroup": "4:memory:/\n",
			"sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
		}, want: 512 * mib},
	} {
		t.Run(c.name, func(t *testing.T) {
			root := fstest.MapFS{}
			for name, text := range c.files {
				root[name] = &fstest.MapFile{Data: []byte(text)}
			}
			if c.goLimit == 0 {
				c.goLimit = math.MaxInt64
			}
			require.Equal(t, c.want, memoryLimit(root, c.goLimit))
		})
	}
	require.Positive(t, MemoryLimit())
}
