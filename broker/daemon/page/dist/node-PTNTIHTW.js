import{a,b,c}from"./chunk-LLOM4XUF.js";import"./chunk-REBHZQU2.js";import"./chunk-DU2NZBF5.js";import"./chunk-43NQ5MWF.js";export{b as FindingList,c as Node,a as findings};
