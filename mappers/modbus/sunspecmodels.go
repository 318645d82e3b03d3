// SPDX-License-Identifier: Apache-2.0

package modbus

import (
	"fmt"
	"strconv"
	"strings"
)

// sunspecModel is one of SunSpec's information models, of which several are laid out alike.
type sunspecModel struct {
	numbers []int
	kind    string // by which a visitor can name it, whichever of the numbers the device has
	points  string
	repeat  string // the points of a part that follows, once or more
}

// sunspecModels are the models that are known. A point has a name, a type and, where it has them, the point with the power of ten of its scale,
// and its unit. Types: i and u are integers with their bits, f is a float, e an enumeration, b bits, a a counter, s a text with its
// registers, sf a power of ten, - nothing. A type with ! can be written.
var sunspecModels = []sunspecModel{
	{[]int{1}, "common", "Mn s16; Md s16; Opt s8; Vr s8; SN s16; DA u16!", ""},
	{[]int{101, 102, 103}, "inverter", `A u16 A_SF A; AphA u16 A_SF A; AphB u16 A_SF A; AphC u16 A_SF A; A_SF sf; PPVphAB u16 V_SF V; PPVphBC u16 V_SF V; PPVphCA u16 V_SF V;
		PhVphA u16 V_SF V; PhVphB u16 V_SF V; PhVphC u16 V_SF V; V_SF sf; W i16 W_SF W; W_SF sf; Hz u16 Hz_SF Hz; Hz_SF sf; VA i16 VA_SF VA; VA_SF sf; VAr i16 VAr_SF var; VAr_SF sf;
		PF i16 PF_SF %; PF_SF sf; WH a32 WH_SF Wh; WH_SF sf; DCA u16 DCA_SF A; DCA_SF sf; DCV u16 DCV_SF V; DCV_SF sf; DCW i16 DCW_SF W; DCW_SF sf;
		TmpCab i16 Tmp_SF °C; TmpSnk i16 Tmp_SF °C; TmpTrns i16 Tmp_SF °C; TmpOt i16 Tmp_SF °C; Tmp_SF sf; St e16; StVnd e16; Evt1 b32; Evt2 b32; EvtVnd1 b32; EvtVnd2 b32; EvtVnd3 b32; EvtVnd4 b32`, ""},
	{[]int{111, 112, 113}, "inverter", `A f32 A; AphA f32 A; AphB f32 A; AphC f32 A; PPVphAB f32 V; PPVphBC f32 V; PPVphCA f32 V; PhVphA f32 V; PhVphB f32 V; PhVphC f32 V;
		W f32 W; Hz f32 Hz; VA f32 VA; VAr f32 var; PF f32 %; WH f32 Wh; DCA f32 A; DCV f32 V; DCW f32 W; TmpCab f32 °C; TmpSnk f32 °C; TmpTrns f32 °C; TmpOt f32 °C;
		St e16; StVnd e16; Evt1 b32; Evt2 b32; EvtVnd1 b32; EvtVnd2 b32; EvtVnd3 b32; EvtVnd4 b32`, ""},
	{[]int{120}, "", `DERTyp e16; WRtg u16 WRtg_SF W; WRtg_SF sf; VARtg u16 VARtg_SF VA; VARtg_SF sf; VArRtgQ1 i16 VArRtg_SF var; VArRtgQ2 i16 VArRtg_SF var; VArRtgQ3 i16 VArRtg_SF var;
		VArRtgQ4 i16 VArRtg_SF var; VArRtg_SF sf; ARtg u16 ARtg_SF A; ARtg_SF sf; PFRtgQ1 i16 PFRtg_SF; PFRtgQ2 i16 PFRtg_SF; PFRtgQ3 i16 PFRtg_SF; PFRtgQ4 i16 PFRtg_SF; PFRtg_SF sf;
		WHRtg u16 WHRtg_SF Wh; WHRtg_SF sf; AhrRtg u16 AhrRtg_SF Ah; AhrRtg_SF sf; MaxChaRte u16 MaxChaRte_SF W; MaxChaRte_SF sf; MaxDisChaRte u16 MaxDisChaRte_SF W; MaxDisChaRte_SF sf; Pad -`, ""},
	{[]int{121}, "", `WMax u16! WMax_SF W; VRef u16! VRef_SF V; VRefOfs i16! VRefOfs_SF V; VMax u16! VMinMax_SF V; VMin u16! VMinMax_SF V; VAMax u16! VAMax_SF VA;
		VArMaxQ1 i16! VArMax_SF var; VArMaxQ2 i16! VArMax_SF var; VArMaxQ3 i16! VArMax_SF var; VArMaxQ4 i16! VArMax_SF var; WGra u16! WGra_SF; PFMinQ1 i16! PFMin_SF; PFMinQ2 i16! PFMin_SF;
		PFMinQ3 i16! PFMin_SF; PFMinQ4 i16! PFMin_SF; VArAct e16!; ClcTotVA e16!; MaxRmpRte u16! MaxRmpRte_SF; ECPNomHz u16! ECPNomHz_SF Hz; ConnPh e16!;
		WMax_SF sf; VRef_SF sf; VRefOfs_SF sf; VMinMax_SF sf; VAMax_SF sf; VArMax_SF sf; WGra_SF sf; PFMin_SF sf; MaxRmpRte_SF sf; ECPNomHz_SF sf`, ""},
	{[]int{122}, "", `PVConn b16; StorConn b16; ECPConn b16; ActWh a64 Wh; ActVAh a64 VAh; ActVArhQ1 a64 varh; ActVArhQ2 a64 varh; ActVArhQ3 a64 varh; ActVArhQ4 a64 varh;
		VArAval i16 VArAval_SF var; VArAval_SF sf; WAval u16 WAval_SF W; WAval_SF sf; StSetLimMsk b32; StActCtl b32; TmSrc s4; Tms u32 s; RtSt b16; Ris u16 Ris_SF; Ris_SF sf`, ""},
	{[]int{123}, "", `Conn_WinTms u16! s; Conn_RvrtTms u16! s; Conn e16!; WMaxLimPct u16! WMaxLimPct_SF %; WMaxLimPct_WinTms u16! s; WMaxLimPct_RvrtTms u16! s; WMaxLimPct_RmpTms u16! s;
		WMaxLim_Ena e16!; OutPFSet i16! OutPFSet_SF; OutPFSet_WinTms u16! s; OutPFSet_RvrtTms u16! s; OutPFSet_RmpTms u16! s; OutPFSet_Ena e16!; VArWMaxPct i16! VArPct_SF %; VArMaxPct i16! VArPct_SF %;
		VArAvalPct i16! VArPct_SF %; VArPct_WinTms u16! s; VArPct_RvrtTms u16! s; VArPct_RmpTms u16! s; VArPct_Mod e16!; VArPct_Ena e16!; WMaxLimPct_SF sf; OutPFSet_SF sf; VArPct_SF sf`, ""},
	{[]int{124}, "storage", `WChaMax u16! WChaMax_SF W; WChaGra u16! WChaDisChaGra_SF %; WDisChaGra u16! WChaDisChaGra_SF %; StorCtl_Mod b16!; VAChaMax u16! VAChaMax_SF VA; MinRsvPct u16! MinRsvPct_SF %;
		ChaState u16 ChaState_SF %; StorAval u16 StorAval_SF Ah; InBatV u16 InBatV_SF V; ChaSt e16; OutWRte i16! InOutWRte_SF %; InWRte i16! InOutWRte_SF %; InOutWRte_WinTms u16! s;
		InOutWRte_RvrtTms u16! s; InOutWRte_RmpTms u16! s; ChaGriSet e16!; WChaMax_SF sf; WChaDisChaGra_SF sf; VAChaMax_SF sf; MinRsvPct_SF sf; ChaState_SF sf; StorAval_SF sf; InBatV_SF sf; InOutWRte_SF sf`, ""},
	{
		[]int{160},
		"mppt", "DCA_SF sf; DCV_SF sf; DCW_SF sf; DCWH_SF sf; Evt b32; N u16; TmsPer u16",
		"ID u16; IDStr s8; DCA u16 DCA_SF A; DCV u16 DCV_SF V; DCW u16 DCW_SF W; DCWH a32 DCWH_SF Wh; Tms u32 s; Tmp i16 °C; DCSt e16; DCEvt b32",
	},
	{[]int{201, 202, 203, 204}, "meter", `A i16 A_SF A; AphA i16 A_SF A; AphB i16 A_SF A; AphC i16 A_SF A; A_SF sf; PhV i16 V_SF V; PhVphA i16 V_SF V; PhVphB i16 V_SF V; PhVphC i16 V_SF V;
		PPV i16 V_SF V; PPVphAB i16 V_SF V; PPVphBC i16 V_SF V; PPVphCA i16 V_SF V; V_SF sf; Hz i16 Hz_SF Hz; Hz_SF sf; W i16 W_SF W; WphA i16 W_SF W; WphB i16 W_SF W; WphC i16 W_SF W; W_SF sf;
		VA i16 VA_SF VA; VAphA i16 VA_SF VA; VAphB i16 VA_SF VA; VAphC i16 VA_SF VA; VA_SF sf; VAR i16 VAR_SF var; VARphA i16 VAR_SF var; VARphB i16 VAR_SF var; VARphC i16 VAR_SF var; VAR_SF sf;
		PF i16 PF_SF %; PFphA i16 PF_SF %; PFphB i16 PF_SF %; PFphC i16 PF_SF %; PF_SF sf; TotWhExp a32 TotWh_SF Wh; TotWhExpPhA a32 TotWh_SF Wh; TotWhExpPhB a32 TotWh_SF Wh; TotWhExpPhC a32 TotWh_SF Wh;
		TotWhImp a32 TotWh_SF Wh; TotWhImpPhA a32 TotWh_SF Wh; TotWhImpPhB a32 TotWh_SF Wh; TotWhImpPhC a32 TotWh_SF Wh; TotWh_SF sf; TotVAhExp a32 TotVAh_SF VAh; TotVAhExpPhA a32 TotVAh_SF VAh;
		TotVAhExpPhB a32 TotVAh_SF VAh; TotVAhExpPhC a32 TotVAh_SF VAh; TotVAhImp a32 TotVAh_SF VAh; TotVAhImpPhA a32 TotVAh_SF VAh; TotVAhImpPhB a32 TotVAh_SF VAh; TotVAhImpPhC a32 TotVAh_SF VAh; TotVAh_SF sf;
		TotVArhImpQ1 a32 TotVArh_SF varh; TotVArhImpQ1PhA a32 TotVArh_SF varh; TotVArhImpQ1PhB a32 TotVArh_SF varh; TotVArhImpQ1PhC a32 TotVArh_SF varh;
		TotVArhImpQ2 a32 TotVArh_SF varh; TotVArhImpQ2PhA a32 TotVArh_SF varh; TotVArhImpQ2PhB a32 TotVArh_SF varh; TotVArhImpQ2PhC a32 TotVArh_SF varh;
		TotVArhExpQ3 a32 TotVArh_SF varh; TotVArhExpQ3PhA a32 TotVArh_SF varh; TotVArhExpQ3PhB a32 TotVArh_SF varh; TotVArhExpQ3PhC a32 TotVArh_SF varh;
		TotVArhExpQ4 a32 TotVArh_SF varh; TotVArhExpQ4PhA a32 TotVArh_SF varh; TotVArhExpQ4PhB a32 TotVArh_SF varh; TotVArhExpQ4PhC a32 TotVArh_SF varh; TotVArh_SF sf; Evt b32`, ""},
	{[]int{802}, "battery", `AHRtg u16 AHRtg_SF Ah; WHRtg u16 WHRtg_SF Wh; WChaRteMax u16 WChaDisChaMax_SF W; WDisChaRteMax u16 WChaDisChaMax_SF W; DisChaRte u16 DisChaRte_SF %; SoCMax u16 SoC_SF %;
		SoCMin u16 SoC_SF %; SocRsvMax u16! SoC_SF %; SoCRsvMin u16! SoC_SF %; SoC u16 SoC_SF %; DoD u16 DoD_SF %; SoH u16 SoH_SF %; NCyc u32; ChaSt e16; LocRemCtl e16; Hb u16; CtrlHb u16!; AlmRst u16!;
		Typ e16; State e16; StateVnd e16; WarrDt u32; Evt1 b32; Evt2 b32; EvtVnd1 b32; EvtVnd2 b32; V u16 V_SF V; VMax u16 V_SF V; VMin u16 V_SF V; CellVMax u16 CellV_SF V; CellVMaxStr u16;
		CellVMaxMod u16; CellVMin u16 CellV_SF V; CellVMinStr u16; CellVMinMod u16; CellVAvg u16 CellV_SF V; A i16 A_SF A; AChaMax u16 AMax_SF A; ADisChaMax u16 AMax_SF A; W i16 W_SF W;
		ReqInvState e16; ReqW i16 W_SF W; SetOp e16!; SetInvState e16!; AHRtg_SF sf; WHRtg_SF sf; WChaDisChaMax_SF sf; DisChaRte_SF sf; SoC_SF sf; DoD_SF sf; SoH_SF sf; V_SF sf; CellV_SF sf; A_SF sf; AMax_SF sf; W_SF sf`, ""},
}

// sunspecPoint is one value of a model, and where it is from the model's first register on.
type sunspecPoint struct {
	name, factor, unit string
	typ                byte // as in sunspecModels
	words              uint16
	offset             uint16
	writable           bool
}

// parsePoints reads points, and how many registers they have.
func parsePoints(text string) (list []sunspecPoint, size uint16) {
	for part := range strings.SplitSeq(text, ";") {
		words := strings.Fields(part)
		if len(words) < 2 {
			continue
		}
		p := sunspecPoint{name: words[0], typ: words[1][0], offset: size, writable: strings.HasSuffix(words[1], "!"), words: 1}
		n, _ := strconv.Atoi(strings.Trim(words[1], "abefisu!-"))
		switch {
		case p.typ == 's' && n > 0:
			p.words = uint16(n)
		case words[1] == "sf":
			p.typ = 'x'
		case n > 0:
			p.words = uint16(n / 16)
		}
		for _, w := range words[2:] {
			if strings.HasSuffix(w, "_SF") {
				p.factor = w
			} else {
				p.unit = w
			}
		}
		list = append(list, p)
		size += p.words
	}
	return list, size
}

// findPoint finds a point by its name, whatever its case.
func findPoint(list []sunspecPoint, name string) (sunspecPoint, bool) {
	for _, p := range list {
		if strings.EqualFold(p.name, name) && p.typ != '-' {
			return p, true
		}
	}
	return sunspecPoint{}, false
}

// config is the configuration of a visitor for the point, in a model whose first register is at address, with repeated the first of the
// part that the point is in.
func (p sunspecPoint) config(fixed []sunspecPoint, address, repeated uint16) map[string]string {
	c := map[string]string{"register": "holding", "address": fmt.Sprint(repeated + p.offset)}
	switch p.typ {
	case 's':
		c["type"], c["length"] = "string", fmt.Sprint(p.words)
	case 'i', 'x':
		c["type"] = fmt.Sprintf("int%d", 16*p.words)
	case 'f':
		c["type"] = fmt.Sprintf("float%d", 16*p.words)
	default:
		c["type"] = fmt.Sprintf("uint%d", 16*p.words)
	}
	if factor, ok := findPoint(fixed, p.factor); ok {
		c["scaleFrom"] = fmt.Sprint(address + factor.offset)
	}
	return c
}

// absent is what the point holds when it has no value. ok is false of one that has always one, and of floats and texts, which tell it
// otherwise.
func (p sunspecPoint) absent() (n uint64, ok bool) {
	bits := 16 * p.words
	switch p.typ {
	case 'i', 'x':
		return 1 << (bits - 1), true
	case 'u', 'e', 'b':
		return 1<<bits - 1, true
	}
	return 0, false
}
