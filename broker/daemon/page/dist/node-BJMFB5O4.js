import{d as a,e as b,f as c}from"./chunk-ZEJMX6TB.js";import"./chunk-LWRGUXOS.js";import"./chunk-7WCWPSKF.js";import"./chunk-43NQ5MWF.js";export{b as FindingList,c as Node,a as findings};
