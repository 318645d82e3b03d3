import{a,b,c}from"./chunk-MH2HSSIH.js";import"./chunk-EQ24PSK2.js";import"./chunk-7WCWPSKF.js";import"./chunk-43NQ5MWF.js";export{b as FindingList,c as Node,a as findings};
