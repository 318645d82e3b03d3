#include "textflag.h"

// func steppedClock() uintptr
TEXT ·steppedClock(SB),NOSPLIT,$0-8
	LEAQ	·clockGettime(SB), AX
	MOVQ	AX, ret+0(FP)
	RET

// int clock_gettime(clockid_t DI, struct timespec *SI), as C calls it: on the system's stack, and without a g.
TEXT ·clockGettime(SB),NOSPLIT|NOFRAME,$0
	SUBQ	$24, SP // the two arguments, and what aligns the stack to 16
	MOVQ	DI, 0(SP)
	MOVQ	SI, 8(SP)
	MOVQ	·kernelClock(SB), AX
	CALL	AX
	MOVQ	0(SP), DI
	MOVQ	8(SP), SI
	ADDQ	$24, SP
	CMPL	DI, $0 // CLOCK_REALTIME
	JNE	done
	MOVQ	·offset(SB), CX
	MOVQ	(CX), CX
	ADDQ	CX, (SI) // tv_sec
done:
	RET
